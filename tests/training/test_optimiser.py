"""The optimiser and its state as named tensors."""

from pathlib import Path

import pytest
import torch
from torch.optim import Adam, AdamW

from phmctl import PHMLinear
from phmctl.checkpoints import copy_tensors
from phmctl.training.optimiser import (
    build_optimiser,
    optimiser_tensors,
    prepare_moments,
    set_learning_rate,
)
from tests.training.fake import FakeModel, make_recipe


def _trained(kind: str = "adam") -> tuple[FakeModel, Adam]:
    torch.manual_seed(0)
    model = FakeModel()
    optimiser = build_optimiser(model, make_recipe(optimizer=kind, weight_decay=0.1).training)
    for _ in range(3):
        _update(model, optimiser)
    return model, optimiser


def _update(model: FakeModel, optimiser: Adam) -> None:
    model.eval()(torch.ones(2, 6)).pow(2).sum().backward()
    optimiser.step()
    optimiser.zero_grad()


def test_the_recipe_chooses_kind_and_settings() -> None:
    _, optimiser = _trained("adamw")
    assert type(optimiser) is AdamW
    assert type(_trained("adam")[1]) is Adam
    assert optimiser.defaults["betas"] == (0.9, 0.98)
    assert optimiser.defaults["eps"] == 1e-9
    assert optimiser.defaults["weight_decay"] == 0.1


def test_adam_by_hand() -> None:
    """Kingma & Ba, algorithm 1, the first step: the update is lr·g/(|g| + ε)."""
    layer = torch.nn.Linear(1, 1, bias=False)
    before = layer.weight.item()
    optimiser = build_optimiser(layer, make_recipe(learning_rate=0.01).training)
    layer(torch.tensor([[3.0]])).sum().backward()
    optimiser.step()
    assert layer.weight.item() == pytest.approx(before - 0.01, abs=1e-6)


def test_a_shared_parameter_is_updated_once() -> None:
    model, optimiser = _trained()
    names = optimiser_tensors(optimiser, model)
    assert "exp_avg.second.weight" in names
    assert not any("shared" in name for name in names)
    assert sum(len(group["params"]) for group in optimiser.param_groups) == 6


@pytest.mark.parametrize("kind", ["adam", "adamw"])
def test_restored_state_goes_on_bit_for_bit(kind: str) -> None:
    model, optimiser = _trained(kind)
    twin = FakeModel()
    twin.load_state_dict(model.state_dict())
    other = build_optimiser(twin, make_recipe(optimizer=kind, weight_decay=0.1).training)
    copy_tensors(prepare_moments(other, twin), optimiser_tensors(optimiser, model), Path())
    for pair in ((model, optimiser), (twin, other)):
        _update(*pair)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), twin.parameters(), strict=True))


def test_the_learning_rate_is_set_everywhere() -> None:
    _, optimiser = _trained()
    set_learning_rate(optimiser, 0.5)
    assert [group["lr"] for group in optimiser.param_groups] == [0.5]


@pytest.mark.parametrize("options", [{}, {"parametrization": "factors"}, {"algebra": "quaternion"}])
def test_h_decays_as_the_dense_weight_does(options: dict[str, str]) -> None:
    """Were the rule to decay beside the components, H would decay twice as fast, or four times."""
    settings = make_recipe(optimizer="adamw", weight_decay=0.5, learning_rate=0.1).training
    left = []
    for layer in (PHMLinear(8, 8, n=1), PHMLinear(8, 8, n=4, **options)):
        before = layer.weight.detach().clone()
        optimiser = build_optimiser(layer, settings)
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
        left.append((layer.weight.detach().norm() / before.norm()).item())
    assert left == pytest.approx([0.95, 0.95], rel=1e-5)


@pytest.mark.parametrize(("rates", "expected"), [("structured", 3.99), ("one", 1.0)])
def test_rates_follow_the_recipe(rates: str, expected: float) -> None:
    """Adam's first step moves each number by its rate."""
    layer = PHMLinear(256, 256, n=4, initialization="xavier_uniform")
    before = layer.A.detach().clone()
    optimiser = build_optimiser(layer, make_recipe(rates=rates).training)
    set_learning_rate(optimiser, 0.01)
    for parameter in layer.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimiser.step()
    assert (before - layer.A.detach()).mean().item() == pytest.approx(0.01 * expected, rel=0.02)
