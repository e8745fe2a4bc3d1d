"""The optimiser, its state as named tensors, schedules by value, and float32 or bfloat16."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import Adam, AdamW

from phmctl import PHMLinear
from phmctl.devices import has_bfloat16
from phmctl.training.optimiser import (
    build_autocast,
    build_optimiser,
    build_schedule,
    constant,
    inverse_sqrt,
    linear,
    prepare_moments,
    set_learning_rate,
)
from tests.training.fake import FakeModel, make_recipe

CPU = torch.device("cpu")


def test_the_recipe_chooses_kind_and_settings_and_a_shared_parameter_is_one() -> None:
    model = FakeModel()
    for name, kind in (("adam", Adam), ("adamw", AdamW)):
        optimiser = build_optimiser(model, make_recipe(optimizer=name, weight_decay=0.1).training)
        assert type(optimiser) is kind
        assert [optimiser.defaults[key] for key in ("betas", "eps", "weight_decay")] == [(0.9, 0.98), 1e-9, 0.1]
        assert sum(len(group["params"]) for group in optimiser.param_groups) == 6
    names = prepare_moments(optimiser, model)
    assert "exp_avg.second.weight" in names
    assert not any("shared" in name for name in names)


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


@given(step=st.integers(1, 10**6), warmup=st.integers(1, 20_000), width=st.sampled_from([256, 512]))
def test_inverse_sqrt_is_the_papers_formula(step: int, warmup: int, width: int) -> None:
    paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert inverse_sqrt(step, (width * warmup) ** -0.5, warmup) == pytest.approx(paper, rel=1e-9)


def test_rises_and_falls() -> None:
    assert [inverse_sqrt(step, 0.01, 4) for step in (1, 4, 16)] == pytest.approx([0.0025, 0.01, 0.005], rel=1e-12)
    assert [inverse_sqrt(step, 1.0, 0) for step in (1, 4)] == [1.0, 0.5]
    assert [constant(step, 0.1, 2) for step in (1, 2, 3, 1000)] == [0.05, 0.1, 0.1, 0.1]
    assert constant(1, 0.1, 0) == 0.1
    assert [linear(step, 1.0, 2, 6) for step in range(1, 8)] == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert [linear(step, 1.0, 0, 4) for step in range(1, 5)] == pytest.approx([1.0, 0.75, 0.5, 0.25])


@pytest.mark.parametrize(
    ("name", "expected"), [("inverse_sqrt", 0.5 * math.sqrt(3 / 12)), ("constant", 0.5), ("linear", 0.5 / 10)]
)
def test_the_recipe_chooses_the_schedule(name: str, expected: float) -> None:
    settings = make_recipe(schedule=name, warmup=3, steps=12, learning_rate=0.5).training
    assert build_schedule(settings)(12) == pytest.approx(expected)


@given(st.integers(1, 50), st.integers(0, 60))
def test_no_schedule_leaves_zero_to_peak(step: int, warmup: int) -> None:
    for rate in (inverse_sqrt(step, 2.0, warmup), constant(step, 2.0, warmup), linear(step, 2.0, warmup, 50)):
        assert 0 < rate <= 2.0 * (1 + 1e-12)


@pytest.mark.parametrize(
    ("precision", "has", "expected"),
    [
        ("float32", True, torch.float32),
        ("bfloat16", True, torch.bfloat16),
        ("bfloat16", False, torch.float32),
    ],
)
def test_bfloat16_where_the_device_has_it_or_float32_and_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys, precision: str, has: bool, expected: torch.dtype
) -> None:
    monkeypatch.setattr("phmctl.devices.has_bfloat16", lambda device: has)
    with build_autocast(CPU, precision)():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is expected
    assert ("cpu has no bfloat16 arithmetic here; float32 is used" in capsys.readouterr().err) is not has


@pytest.mark.parametrize(
    ("machine", "avx512", "amx", "torchs_own", "expected"),
    [
        ("x86_64", True, False, True, True),
        ("x86_64", False, True, True, True),
        ("x86_64", False, False, True, False),  # AVX-512 without bfloat16: emulated
        ("aarch64", False, False, True, True),
        ("aarch64", False, False, False, False),
        ("x86_64", None, None, True, True),  # a torch without the private names
        ("x86_64", None, None, False, False),
    ],
)
def test_a_cpu_must_have_the_instructions(
    monkeypatch: pytest.MonkeyPatch,
    machine: str,
    avx512: bool | None,
    amx: bool | None,
    torchs_own: bool,
    expected: bool,
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    own = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: torchs_own)
    monkeypatch.setattr(torch, "ops", SimpleNamespace(mkldnn=own))
    for name, answer in (("_is_avx512_bf16_supported", avx512), ("_is_amx_tile_supported", amx)):
        if answer is None:
            monkeypatch.delattr(torch.cpu, name, raising=False)
        else:
            monkeypatch.setattr(torch.cpu, name, lambda answer=answer: answer, raising=False)
    assert has_bfloat16(CPU) is expected
