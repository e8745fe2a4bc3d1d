"""The pointer: a distribution, as its equation has it; its loss; what it does before it is trained."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phmctl.data.special import BOS, EOS, PAD
from phmctl.nn.build import LinearBuilder
from phmctl.nn.pointer import Pointed, Pointer, in_front

VOCABULARY, WIDTH = 11, 8


def pointer(algebra: str = "phm", n: int = 2) -> Pointer:
    torch.manual_seed(0)
    return Pointer(LinearBuilder(algebra, n), WIDTH).double()


def case(seed: int, sentences: int, longest: int, steps: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Logits, states, last tokens, the encoder's states and source tokens; sources have different lengths."""
    draw = torch.Generator().manual_seed(seed)
    tokens = torch.randint(4, VOCABULARY, (sentences, longest), generator=draw)
    lengths = torch.randint(1, longest + 1, (sentences,), generator=draw)
    tokens[torch.arange(longest) >= lengths[:, None]] = PAD
    target = torch.randint(4, VOCABULARY, (sentences, steps), generator=draw)
    target[:, 0] = BOS
    copied = min(longest, steps - 1)
    target[0, 1 : 1 + copied] = tokens[0, :copied]
    last = in_front(target, BOS)[:, 1:]
    sizes = ((sentences, steps, VOCABULARY), (sentences, steps, WIDTH), (sentences, longest, WIDTH))
    logits, hidden, states = (torch.randn(size, dtype=torch.float64, generator=draw) for size in sizes)
    return logits, hidden, last, states, tokens


def read(model: Pointer, states: Tensor, tokens: Tensor) -> Pointed:
    return model.read(states, (tokens != PAD)[:, None, None], tokens, BOS)


@torch.no_grad()
def reference(model: Pointer, logits: Tensor, hidden: Tensor, last: Tensor, states: Tensor, tokens: Tensor) -> Tensor:
    """The class's equation, one token of one sentence at a time."""
    found = torch.zeros_like(logits)
    for row in range(len(tokens)):
        source = [int(token) for token in tokens[row] if token != PAD]
        padded = [BOS] * 3 + source
        for step, h in enumerate(hidden[row]):
            gate, *bonuses = model.gates(h)
            scores = []
            for s, m in enumerate(states[row, : len(source)]):
                score = model.query(h) @ model.key(m) / WIDTH**0.5
                for k, bonus in enumerate(bonuses, start=1):
                    same = padded[s + 3 - k : s + 3] == last[row, step, :k].flip(0).tolist()
                    score = score + (4 + bonus) * same
                scores.append(score)
            attention = torch.stack(scores).softmax(0)
            found[row, step] = gate.sigmoid() * logits[row, step].softmax(0)
            for token, share in zip(source, attention, strict=True):
                found[row, step, token] += (1 - gate.sigmoid()) * share
    return found


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 999), sentences=st.integers(1, 3), longest=st.integers(1, 6), steps=st.integers(1, 4))
def test_the_output_is_the_equations_distribution(seed: int, sentences: int, longest: int, steps: int) -> None:
    model = pointer()
    logits, hidden, last, states, tokens = case(seed, sentences, longest, steps)
    found = model(logits, hidden, last, read(model, states, tokens)).exp()
    torch.testing.assert_close(found, reference(model, logits, hidden, last, states, tokens))
    torch.testing.assert_close(found.sum(-1), torch.ones_like(found[:, :, 0]))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_the_loss_is_that_of_the_distribution(smoothing: float) -> None:
    model = pointer()
    logits, hidden, last, states, tokens = case(3, 4, 6, 5)
    labels = torch.randint(4, VOCABULARY, last.shape[:2], generator=torch.Generator().manual_seed(4))
    labels[1, 3:] = PAD
    labels[2, 2] = tokens[2, 0]
    source = read(model, states, tokens)
    loss, nats = model.loss(logits, hidden, last, source, labels, smoothing=smoothing, ignore=PAD)
    kept = labels != PAD
    wanted = -model(logits, hidden, last, source).gather(2, labels[:, :, None])[:, :, 0][kept].sum()
    torch.testing.assert_close(nats, wanted.detach())
    uniform = -logits.log_softmax(-1).mean(-1)[kept].sum()
    torch.testing.assert_close(loss, (1 - smoothing) * wanted + smoothing * uniform)


def test_gradients_of_the_loss() -> None:
    model = pointer()
    logits, hidden, last, states, tokens = case(5, 2, 4, 3)
    labels = torch.tensor([[4, EOS, PAD], [int(tokens[1, 0]), 9, EOS]])

    def loss(logits: Tensor, hidden: Tensor, states: Tensor) -> Tensor:
        return model.loss(logits, hidden, last, read(model, states, tokens), labels, smoothing=0.1)[0]

    assert torch.autograd.gradcheck(loss, [each.requires_grad_() for each in (logits, hidden, states)])


def test_a_label_that_is_nowhere_in_the_source_has_finite_gradients() -> None:
    model = pointer().float()
    logits, hidden, last, states, tokens = case(6, 1, 3, 2)
    hidden = hidden.float().requires_grad_()
    source = read(model, states.float(), tokens)
    model.loss(logits.float(), hidden, last, source, torch.tensor([[EOS, EOS]]))[0].backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_an_untrained_pointer_copies_from_left_to_right() -> None:
    model = pointer()
    source = torch.tensor([[5, 9, 9, 7, 5, 4, EOS, PAD]])
    states, hidden = torch.randn(1, 8, WIDTH).double() / 4, torch.randn(1, 1, WIDTH).double() / 4
    out = [BOS]
    while out[-1] != EOS:
        last = in_front(torch.tensor([out]), BOS)[:, -1:]
        logs = model(torch.zeros(1, 1, VOCABULARY), hidden, last, read(model, states, source))
        out.append(int(logs.argmax()))
        assert len(out) < 9
    assert out[1:] == source[0, :7].tolist()


@pytest.mark.parametrize(("algebra", "n"), [("real", 1), ("phm", 4), ("quaternion", 4)])
def test_its_maps_are_the_models(algebra: str, n: int) -> None:
    model = pointer(algebra, n)
    maps = 2 * (WIDTH * WIDTH // n + WIDTH + (n**3 if algebra == "phm" else 0))
    assert sum(each.numel() for each in model.parameters()) == maps + 4 * WIDTH + 4


def test_the_tokens_of_some_sentences_are_kept() -> None:
    model = pointer()
    logits, hidden, last, states, tokens = case(7, 3, 5, 2)
    some = torch.tensor([2, 0])
    whole = model(logits, hidden, last, read(model, states, tokens))
    part = model(logits[some], hidden[some], last[some], read(model, states, tokens).select(some))
    torch.testing.assert_close(part, whole[some])
