"""An encoder-decoder Transformer over each fixed algebra beside the quaternions: the same rules of sequence hold."""

from typing import Any

import pytest
import torch

from phmctl.algebra.kronecker import fixed_rule
from phmctl.assembly import build_transformer
from phmctl.data.special import BOS, PAD
from phmctl.models.transformer import Transformer
from phmctl.nn.linear import PHMLinear
from phmctl.recipe.models import TransformerSection

DIMENSIONS = {"complex": 2, "octonion": 8, "sedenion": 16}
SHAPE: dict[str, Any] = {
    "width": 32,
    "feed_forward": 64,
    "heads": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
}


@pytest.fixture(params=DIMENSIONS)
def algebra(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def model(algebra: str) -> Transformer:
    torch.manual_seed(0)
    return build_transformer(TransformerSection(**SHAPE, algebra=algebra), 20, 20).double().eval()


@pytest.fixture
def ids() -> tuple[torch.Tensor, torch.Tensor]:
    """Source (3, 6) with padding in the first row, and decoder input (3, 5)."""
    generator = torch.Generator().manual_seed(1)
    source, target = (torch.randint(4, 20, (3, length), generator=generator) for length in (6, 5))
    source[0, 4:] = PAD
    target[:, 0] = BOS
    return source, target


def test_every_map_is_of_the_algebra(model: Transformer, algebra: str) -> None:
    maps = [layer for layer in model.modules() if isinstance(layer, PHMLinear)]
    assert len(maps) == 2 * 4 + 2 * 7
    for layer in maps:
        assert (layer.algebra, layer.n) == (algebra, DIMENSIONS[algebra])
        assert torch.equal(layer.A, fixed_rule(algebra).double())
    assert not any(name.endswith(".A") for name, _ in model.named_parameters())


def test_a_step_of_training_lowers_the_loss(model: Transformer, ids: tuple[torch.Tensor, torch.Tensor]) -> None:
    source, target = ids
    model.train()
    optimiser = torch.optim.SGD(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(2):
        logits = model.logits(model(source, target[:, :-1]))  # (3, 4, V)
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten())
        loss.backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert parameter.grad.abs().max() > 0, name
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.item())
    assert losses[1] < losses[0]


def test_earlier_logits_do_not_see_a_later_token(model: Transformer, ids: tuple[torch.Tensor, torch.Tensor]) -> None:
    source, target = ids
    changed = target.clone()
    changed[:, 3] = torch.where(target[:, 3] == 5, 6, 5)
    before, after = (model.logits(model(source, each)) for each in (target, changed))
    torch.testing.assert_close(before[:, :3], after[:, :3], rtol=0, atol=1e-12)
    assert (before[:, 3] - after[:, 3]).abs().amax(-1).min() > 1e-3


def test_padding_of_the_source_changes_nothing(model: Transformer, ids: tuple[torch.Tensor, torch.Tensor]) -> None:
    source, target = ids
    wider = torch.nn.functional.pad(source, (0, 4), value=PAD)
    expected = model(source, target)
    torch.testing.assert_close(model(wider, target), expected)
    torch.testing.assert_close(model(source[:1, :4], target[:1]), expected[:1])


def test_steps_give_the_logits_of_the_whole(model: Transformer, ids: tuple[torch.Tensor, torch.Tensor]) -> None:
    source, target = ids
    with torch.no_grad():
        whole = model.logits(model(source, target))  # (3, 5, V)
        state = model.start(model.encode(source), beams=1, max_length=5)
        stepped = [model.step(target[:, t : t + 1], state)[:, 0] for t in range(5)]
    torch.testing.assert_close(torch.stack(stepped, dim=1), whole)
