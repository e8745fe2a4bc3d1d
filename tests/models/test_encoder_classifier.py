"""The encoder classifier: equal to ``nn.TransformerEncoder``, independent of batch and padding, able to learn."""

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.assembly import build_classifier
from phmctl.data import PAD
from phmctl.models.classifiers import EncoderClassifier
from phmctl.models.transformer import embed
from phmctl.recipe.models import EncoderClassifierSection
from tests.models.test_against_torch import copy_layer

VOCABULARY = 12
SMALL: dict[str, Any] = {"kind": "encoder", "width": 16, "feed_forward": 24, "heads": 2, "dropout": 0.0}
CHOICES = [("real", 1), ("phm", 2), ("phm", 4), ("quaternion", 4), ("octonion", 8)]


def build(**changes: Any) -> EncoderClassifier:
    torch.manual_seed(0)
    model = build_classifier(EncoderClassifierSection(**(SMALL | changes)), VOCABULARY, 3).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name:
            nn.init.normal_(parameter, std=0.5)
    return model


def padded(texts: list[list[int]], width: int | None = None) -> Tensor:
    width = max(map(len, texts)) if width is None else width
    return torch.tensor([text + [PAD] * (width - len(text)) for text in texts], dtype=torch.int64)


def peer_of(model: EncoderClassifier) -> nn.TransformerEncoder:
    """Return a ``torch.nn.TransformerEncoder`` with the model's dense weights."""
    first, width = model.encoder[0], model.embedding.embedding_dim
    sizes = width, first.attention.heads, first.feed_forward.expand.out_features
    pre_norm = first.attention_residual.pre_norm
    peer_layer = nn.TransformerEncoderLayer(
        *sizes, dropout=0.0, batch_first=True, norm_first=pre_norm, dtype=torch.float64
    )
    norm = nn.LayerNorm(width, dtype=torch.float64) if isinstance(model.encoder_norm, nn.LayerNorm) else None
    peer = nn.TransformerEncoder(peer_layer, len(model.encoder), norm, enable_nested_tensor=False)
    for layer, peer_layer in zip(model.encoder, peer.layers, strict=True):
        copy_layer(layer, peer_layer)
    if norm is not None:
        norm.load_state_dict(model.encoder_norm.state_dict())
    return peer


def run_peer(model: EncoderClassifier, peer: nn.TransformerEncoder, tokens: Tensor) -> Tensor:
    states = peer(embed(model.embedding, tokens), src_key_padding_mask=tokens == PAD)  # (B, S, d)
    lengths = (tokens != PAD).sum(1).tolist()
    rows = [state[:length] for state, length in zip(states, lengths, strict=True)]
    pooled = [row[-1] if model.pooling == "last" else row.mean(0) for row in rows]
    return F.linear(torch.stack(pooled), model.output.weight, model.output.bias)


TEXTS = [[4, 5, 6, 7, 8], [9], [5, 5, 11]]


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize(("norm", "final_norm"), [("pre", True), ("post", False)])
@pytest.mark.parametrize(("algebra", "n"), CHOICES)
def test_outputs_and_gradients_equal_torchs(algebra: str, n: int, norm: str, final_norm: bool, pooling: str) -> None:
    model = build(algebra=algebra, n=n, norm=norm, final_norm=final_norm, pooling=pooling)
    tokens = padded(TEXTS, 7)
    logits, expected = model(tokens), run_peer(model, peer_of(model), tokens)
    torch.testing.assert_close(logits, expected)
    parameters = [model.embedding.weight, *model.output.parameters()]
    gradients = torch.autograd.grad(logits.square().sum(), parameters)
    assert all(gradient.abs().max() > 0 for gradient in gradients)
    torch.testing.assert_close(gradients, torch.autograd.grad(expected.square().sum(), parameters))


@pytest.mark.parametrize("pooling", ["last", "mean"])
@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.lists(st.integers(1, VOCABULARY - 1), min_size=1, max_size=6), min_size=1, max_size=4),
    st.integers(0, 3),
)
def test_a_text_gets_the_same_logits_in_every_batch(pooling: str, texts: list[list[int]], extra: int) -> None:
    model = build(algebra="phm", n=4, pooling=pooling).eval()
    batched = model(padded(texts, max(map(len, texts)) + extra))
    single = torch.cat([model(padded([text])) for text in texts])
    torch.testing.assert_close(batched, single)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_an_empty_text_is_encoded_as_zeros(pooling: str) -> None:
    model = build(pooling=pooling)
    tokens = padded([[], [4, 5]], 3)
    assert model.encode(tokens)[0].eq(0).all()
    torch.testing.assert_close(model(tokens)[1:], model(tokens[1:]))
    torch.testing.assert_close(model(tokens)[0], model.output.bias)
    model(tokens).sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_dropout_is_active_only_in_training() -> None:
    model = build(dropout=0.5)
    assert not torch.equal(model.train()(padded(TEXTS)), model(padded(TEXTS)))
    assert torch.equal(model.eval()(padded(TEXTS)), model(padded(TEXTS)))


def accuracy(model: nn.Module, task: Callable[..., Sequence[Tensor]], rate: float, steps: int) -> float:
    """Train on random texts, and return the accuracy on other texts."""
    optimiser = torch.optim.Adam(model.parameters(), lr=rate)
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        *texts, label = task(64, generator)
        optimiser.zero_grad()
        F.cross_entropy(model(*texts), label).backward()
        optimiser.step()
    *texts, label = task(500, generator)
    return (model.eval()(*texts).argmax(1) == label).float().mean().item()


def majority(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw texts of 3, 5, 7 or 9 tokens of two types; the label is the more frequent type."""
    tokens = torch.randint(4, 6, (rows, 9), generator=generator)
    lengths = 3 + 2 * torch.randint(0, 4, (rows, 1), generator=generator)
    tokens[torch.arange(9) >= lengths] = PAD
    return tokens, ((tokens == 5).sum(1) > (tokens == 4).sum(1)).long()


def head_noun(rows: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw texts of 2 to 8 tokens; the label is the first token (6 or 7), regardless of the tokens after it."""
    tokens = torch.randint(4, 8, (rows, 8), generator=generator)
    tokens[:, 0] = torch.randint(6, 8, (rows,), generator=generator)
    label = tokens[:, 0] - 6
    tokens[torch.arange(8) >= torch.randint(2, 9, (rows, 1), generator=generator)] = PAD
    return tokens, label


@pytest.mark.parametrize(
    ("task", "algebra", "n", "pooling"),
    [(majority, "real", 1, "mean"), (majority, "phm", 4, "last"), (head_noun, "phm", 4, "mean")],
)
def test_it_learns(task: Any, algebra: str, n: int, pooling: str) -> None:
    torch.manual_seed(0)
    section = EncoderClassifierSection(
        **(SMALL | {"width": 32, "feed_forward": 64}), algebra=algebra, n=n, pooling=pooling
    )
    assert accuracy(build_classifier(section, VOCABULARY, 2), task, 3e-3, 120) > 0.95
