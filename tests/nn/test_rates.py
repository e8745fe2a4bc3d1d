"""Rates by structure: the fraction of its scale that each factor moves, and what the optimiser does with it."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import prune
from torch.nn.utils.parametrizations import spectral_norm, weight_norm

from phmctl import PHMLSTM, PHMConv2d, PHMEmbedding, PHMLinear, convert
from phmctl.errors import UserError
from phmctl.nn.linear import TwoFactorLinear
from phmctl.nn.tuning import parameter_groups, relative_rates


@given(n=st.sampled_from([1, 2, 4, 8]), width=st.sampled_from([64, 256]), wider=st.sampled_from([1, 4]))
def test_every_factor_moves_by_the_dense_weights_fraction_of_its_scale(n: int, width: int, wider: int) -> None:
    torch.manual_seed(0)
    layer = PHMLinear(width, width * wider, n=n)
    rates = relative_rates(layer)
    dense = (1 if n == 1 else 2) * min(1.0, 64 / width) / layer.weight.square().mean().sqrt().item()
    for name, parameter in layer.named_parameters():
        if name != "bias":
            assert rates[name] / parameter.square().mean().sqrt().item() == pytest.approx(dense, rel=0.05)
    assert rates["bias"] == 1.0


def test_a_rule_has_the_rate_of_the_formula() -> None:
    """rate(A) = 2 rate(H) √(d/n) where the entries of H have the variance 1/d."""
    rates = relative_rates(PHMLinear(512, 512, n=4, initialization="xavier_uniform"))
    assert rates["A"] == pytest.approx(0.25 * math.sqrt(512 / 4), rel=0.02)
    assert rates["S"] == pytest.approx(0.25, rel=1e-6)


@pytest.mark.parametrize(
    ("layer", "gain"),
    [
        (PHMLinear(512, 512, n=4, parametrization="factors"), 0.5),
        (PHMLinear(512, 512, n=4, rank=4), 0.5),
        (PHMLinear(512, 512, n=4, algebra="quaternion"), 2),
        (TwoFactorLinear(512, 512, blocks=1, inner=128), 0.5),
    ],
)
def test_factors_fixed_rules_and_thin_maps(layer: PHMLinear | TwoFactorLinear, gain: float) -> None:
    rates = relative_rates(layer)
    scale = layer.weight.square().mean().sqrt().item()
    assert rates.keys() == {name for name, _ in layer.named_parameters()}
    for name in rates.keys() - {"bias"}:
        scale_of_factor = layer.get_parameter(name).square().mean().sqrt().item()
        assert rates[name] == pytest.approx(gain * 0.125 * scale_of_factor / scale, rel=0.05)


def test_tables_take_the_models_rate_and_so_does_a_weight_that_is_tied_to_one() -> None:
    model = nn.ModuleDict({"head": nn.Linear(512, 1000, bias=False), "table": nn.Embedding(1000, 512)})
    model["head"].weight = model["table"].weight
    assert set(relative_rates(model).values()) == {1.0}
    table = PHMEmbedding(1000, 512, n=4)  # of entries N(0, 1)
    assert relative_rates(table) == pytest.approx({"S": 1.0, "A": 0.5}, rel=0.02)


@pytest.mark.parametrize("maker", [lambda: PHMLSTM(256, 256, n=4), lambda: convert(nn.LSTM(256, 256), 4)[0]])
def test_lstms_of_ours_and_converted_ones(maker: object) -> None:
    rates = relative_rates(maker())  # type: ignore[operator]
    assert {rate for rate in rates.values() if rate == pytest.approx(0.5, rel=0.05)}  # S
    assert [rate for rate in rates.values() if 3 < rate < 15]  # A


@pytest.mark.parametrize(
    ("module", "rates"),
    [
        (nn.EmbeddingBag(9, 256), [1.0]),
        (nn.Conv2d(64, 8, 2), [0.25, 1.0]),  # fan-in 64 · 2 · 2
        (nn.ConvTranspose2d(256, 2, 2, groups=2), [0.125, 1.0]),  # 128 · 2 · 2
        (nn.LayerNorm([16, 128]), [1.0, 1.0]),
        (spectral_norm(nn.Embedding(9, 256)), [1.0]),
        (spectral_norm(nn.Linear(256, 8)), [1.0, 0.25]),
        (weight_norm(nn.Linear(256, 8)), [1.0, 1.0, 0.25]),  # bias, g, v
    ],
)
def test_modules_of_torch(module: nn.Module, rates: list[float]) -> None:
    assert [*relative_rates(module).values()] == rates


def test_the_transposed_weight_of_transformers() -> None:
    Conv1D = pytest.importorskip("transformers.pytorch_utils").Conv1D
    assert relative_rates(Conv1D(1024, 256)) == {"weight": 0.25, "bias": 1.0}
    rates = relative_rates(convert(nn.Sequential(Conv1D(1024, 256)), 4)[0])
    assert min(rates.values()) == pytest.approx(0.5, rel=0.02)  # S


@pytest.mark.parametrize("lr", [0.0, -1.0, math.nan, math.inf])
def test_impossible_rates_are_refused(lr: float) -> None:
    with pytest.raises(UserError):
        parameter_groups(nn.Linear(2, 2), lr)
    with pytest.raises(UserError, match="meta"):
        parameter_groups(PHMLinear(8, 8, n=4, device="meta"), 1e-3)


def test_a_factor_that_begins_at_zero_still_learns() -> None:
    layer = PHMLinear(256, 256, n=4)
    with torch.no_grad():
        layer.A.zero_()
    assert relative_rates(layer)["A"] == 0.5


def test_groups_serve_any_optimiser() -> None:
    model = nn.Sequential(PHMLinear(256, 256, n=4), nn.LayerNorm(256), nn.Linear(256, 8))
    model[1].weight.requires_grad_(False)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimiser = torch.optim.AdamW(parameter_groups(model, 1e-3), weight_decay=0.0)
    model(torch.randn(64, 256)).square().mean().backward()
    optimiser.step()
    rates = relative_rates(model)
    assert "1.weight" not in rates
    for name, rate in rates.items():  # Adam's first step moves each number by its rate
        moved = (model.get_parameter(name) - before[name]).abs().median().item()
        assert moved == pytest.approx(1e-3 * rate, rel=0.02), name


@pytest.mark.parametrize("converted", [False, True])
@pytest.mark.parametrize("tensor", ["A", "S"])
@pytest.mark.parametrize(
    "reparametrize", [weight_norm, lambda module, name: prune.random_unstructured(module, name, 0.5)]
)
def test_a_reparametrized_rule_does_not_decay_and_reparametrized_components_do(
    reparametrize: object, tensor: str, converted: bool
) -> None:
    layer = convert(nn.Linear(256, 256), 4)[0] if converted else PHMLinear(256, 256, n=4)
    expected = decays(layer)
    owner, names = layer, {"A": "A", "S": "S"}
    if converted:
        owner, names = layer.parametrizations.weight, {"A": "original0", "S": "original1"}
    reparametrize(owner, names[tensor])  # type: ignore[operator]
    assert decays(layer)[(4, 4, 4)] == expected[(4, 4, 4)] == 0
    assert decays(layer)[(4, 64, 64)] == pytest.approx(expected[(4, 64, 64)], rel=0.3)
    assert decays(layer)[(4, 64, 64)] > 0
    assert not any(decay for shape, decay in decays(layer).items() if shape == (4, 1, 1) and tensor == "A")


def decays(model: nn.Module) -> dict[tuple[int, ...], float]:
    """Return the decay of each parameter in a step, by its shape."""
    groups = parameter_groups(model, 1.0, weight_decay=0.5)
    return {tuple(part.shape): group["lr"] * group["weight_decay"] for group in groups for part in group["params"]}


def test_lazy_layers_do_not_stop_the_others() -> None:
    model = nn.Sequential(PHMLinear(256, 256, n=4), nn.LazyLinear(8))
    rates = relative_rates(model)
    assert rates["1.weight"] == 1.0
    assert rates["0.S"] == pytest.approx(0.5, rel=0.02)
    assert len(parameter_groups(model, 1e-3)) == 3
    converted, report = convert(nn.Sequential(nn.Linear(8, 8), nn.LazyLinear(8)), 4, select="0")
    assert report.after == 8 * 2 + 64 + 8
    assert converted[1](converted[0](torch.ones(2, 8))).shape == (2, 8)


@pytest.mark.parametrize(
    ("layer", "fan_in"),
    [
        (PHMConv2d(64, 64, 2, n=4), 256),
        (PHMConv2d(64, 64, 2, groups=2, n=4), 128),
        (convert(nn.Conv2d(64, 64, 2), 4)[0], 256),
        (convert(nn.ConvTranspose1d(128, 16, 2, groups=2), 4)[0], 128),
        (convert(nn.GRUCell(256, 256), 4)[0], 256),
    ],
)
def test_convolutions_and_cells_have_the_rates_of_their_inputs(layer: nn.Module, fan_in: int) -> None:
    assert min(relative_rates(layer).values()) == pytest.approx(2 * 64 / fan_in, rel=0.1)  # S
