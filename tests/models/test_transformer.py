"""The Transformer: decoding steps equal the full forward pass, and outputs do not depend on padding."""

import itertools
from typing import Any

import pytest
import torch

from phmctl.data import BOS, PAD
from phmctl.models import transformer
from phmctl.models.transformer import Transformer
from phmctl.nn.loss import vocabulary_loss
from phmctl.recipe.models import TransformerSection

SMALL: dict[str, Any] = {"width": 16, "feed_forward": 32, "heads": 2, "encoder_layers": 2, "decoder_layers": 2}
FIXED = {"complex": 2, "octonion": 8, "sedenion": 16}
PLACES = [{"compose_layers": name} for name in ("linear", "hierarchical", "bilinear")]
PLACES += [{"compose_heads": name} for name in ("hierarchical", "bilinear")]
BOTH = {"compose_layers": "bilinear", "compose_heads": "bilinear"}


def build(vocabulary: int = 20, **settings: Any) -> Transformer:
    torch.manual_seed(0)
    return Transformer(TransformerSection(**(SMALL | settings)), vocabulary, vocabulary).double().eval()


def sentences(rows: int, length: int, vocabulary: int = 20) -> torch.Tensor:
    return torch.randint(4, vocabulary, (rows, length), generator=torch.Generator().manual_seed(1))


ARRANGEMENTS = [
    {"algebra": algebra, "n": n, "projections": projections, "norm": norm}
    for (algebra, n), projections, norm in itertools.product(
        [("real", 1), ("quaternion", 1), ("phm", 2)], ["fused", "separate", "packed"], ["pre", "post"]
    )
]
ARRANGEMENTS += [{"width": 32, "feed_forward": 64, "algebra": algebra} for algebra in FIXED]
ARRANGEMENTS += [
    [*PLACES, BOTH][index] | {"algebra": algebra, "n": n, "norm": norm, "upsize": 1 + index % 2}
    for index, (algebra, n), norm in itertools.product(range(6), [("real", 1), ("phm", 2)], ["pre", "post"])
]
ANY = [{}, BOTH, *ARRANGEMENTS[18:21]]


def test_positions_are_computed_once_for_all_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    model, calls = build(), []
    transformer._position_table.cache_clear()
    computed = transformer.sinusoids
    monkeypatch.setattr(transformer, "sinusoids", lambda *arguments: calls.append(arguments) or computed(*arguments))
    with torch.inference_mode():
        model(sentences(2, 5), sentences(2, 7))
    model(sentences(2, 250), sentences(2, 3)).sum().backward()
    assert [rows for _, rows, *_ in calls] == [256]
    encoded = transformer._with_positions(torch.zeros(1, 300, 16), 7, 307)
    assert torch.equal(encoded[0], computed(7, 307, 16))


@pytest.mark.parametrize("arrangement", ARRANGEMENTS, ids=lambda a: "-".join(map(str, a.values())))
def test_steps_equal_the_full_forward_pass(arrangement: dict[str, Any]) -> None:
    model = build(**arrangement)
    source, target = sentences(3, 6), sentences(3, 5)
    source[0, 4:] = PAD
    target[:, 0] = BOS
    with torch.no_grad():
        logits = model.logits(model(source, target))  # (3, 5, V)
        state = model.start(model.encode(source), beams=1, max_length=5)
        stepped = [model.step(target[:, t : t + 1], state)[:, 0] for t in range(5)]
    torch.testing.assert_close(torch.stack(stepped, dim=1), logits)


@pytest.mark.parametrize("arrangement", ANY, ids=lambda a: "-".join(map(str, a.values())))
def test_outputs_depend_neither_on_padding_nor_on_later_tokens(arrangement: dict[str, Any]) -> None:
    model, source, target = build(**arrangement), sentences(2, 6), sentences(2, 5)
    padded = torch.cat([source, torch.full((2, 3), PAD)], dim=1)
    before = model.logits(model(source, target))
    torch.testing.assert_close(model.logits(model(padded, target)), before)
    changed = target.clone()
    changed[:, 3] = torch.where(target[:, 3] == 5, 6, 5)
    after = model.logits(model(source, changed))
    torch.testing.assert_close(before[:, :3], after[:, :3], rtol=0, atol=1e-12)
    assert (before[:, 3] - after[:, 3]).abs().amax(-1).min() > 1e-3


def test_reordered_beams_continue_their_parents() -> None:
    model = build(algebra="phm", n=4)
    source = sentences(2, 5)
    prefixes = torch.tensor([[[BOS, 7], [BOS, 9]], [[BOS, 4], [BOS, 11]]])  # (B, K, 2)
    parents = torch.tensor([[1, 1], [1, 0]])
    with torch.no_grad():
        state = model.start(model.encode(source), beams=2, max_length=4)
        for t in range(2):
            model.step(prefixes[:, :, t], state)
        state.reorder(parents)
        state.reorder(torch.tensor([[0, 1]]), torch.tensor([1]))
        stepped = model.step(torch.tensor([[12, 13]]), state)  # (1, 2, V)
        for beam, parent in enumerate([1, 0]):
            target = torch.cat([prefixes[1, parent], torch.tensor([12 + beam])])[None]
            logits = model.logits(model(source[1:], target))[:, -1]
            torch.testing.assert_close(stepped[:, beam], logits)


@pytest.mark.parametrize("capacity", [1, 2, 3, 32])
def test_the_cache_grows_with_the_outputs(capacity: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformer, "CAPACITY", capacity)
    model, source, target = build(), sentences(2, 5), sentences(2, 7)
    target[:, 0] = BOS
    with torch.no_grad():
        logits = model.logits(model(source, target))
        state = model.start(model.encode(source), beams=1, max_length=7)
        for t in range(7):
            torch.testing.assert_close(model.step(target[:, t : t + 1], state)[:, 0], logits[:, t])
            assert min(capacity, 7) <= len(state.past) <= max(2 * t, capacity)
            state.reorder(torch.zeros(2, 1, dtype=torch.long))


def test_the_initial_loss_is_near_the_uniform_distributions() -> None:
    """With N(0, 1) embeddings, a tied generator would start hundreds of nats above it."""
    model = build(vocabulary=400, width=64, algebra="phm", n=4)
    source = sentences(8, 12, 400)
    logits = model.logits(model(source, source))
    loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), source.roll(1, 0).flatten())
    assert abs(loss.item() - torch.log(torch.tensor(400.0)).item()) < 1.5


def test_with_labels_forward_returns_the_loss() -> None:
    model, ids = build(algebra="phm", n=4), sentences(2, 5)
    ids[1, 3:] = PAD
    hidden = model(ids, ids)
    sums = model(ids, ids, ids, 0.1)
    torch.testing.assert_close(sums, vocabulary_loss(*model.output(hidden), ids, smoothing=0.1), rtol=0, atol=0)
    logits = model.logits(hidden).flatten(0, 1)
    cross_entropy = torch.nn.functional.cross_entropy(logits, ids.flatten(), ignore_index=PAD, reduction="sum")
    torch.testing.assert_close(sums[1], cross_entropy.detach())
