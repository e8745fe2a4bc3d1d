"""The optimiser, its state as named tensors, schedules by value, and float32 or bfloat16."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.optim import Adam, AdamW

from phmctl import PHMLinear
from phmctl.devices import has_bfloat16
from phmctl.saving import prepare_moments
from phmctl.training.optimiser import build_optimiser, build_schedule, set_learning_rate
from phmctl.training.trainer import build_autocast
from tests.training.fake import FakeModel, make_recipe

CPU = torch.device("cpu")


def test_the_recipe_chooses_kind_and_settings_and_a_shared_parameter_is_one() -> None:
    model = FakeModel()
    for name, optimiser_class in (("adam", Adam), ("adamw", AdamW)):
        optimiser = build_optimiser(model, make_recipe(optimizer=name, weight_decay=0.1).training)
        assert type(optimiser) is optimiser_class
        assert [optimiser.defaults[key] for key in ("betas", "eps", "weight_decay")] == [(0.9, 0.98), 1e-9, 0.1]
        assert sum(len(group["params"]) for group in optimiser.param_groups) == 6
    names = prepare_moments(optimiser, model)
    assert "exp_avg.second.weight" in names
    assert not any("shared" in name for name in names)


@pytest.mark.parametrize(("rates", "share"), [("structured", 64 / 128), ("one", 1.0)])
@pytest.mark.parametrize("options", [{}, {"rank": 5}, {"algebra": "quaternion"}])
def test_h_decays_as_the_dense_weight_does(options: dict[str, str], rates: str, share: float) -> None:
    """Were the rule to decay beside the components, H would decay twice as fast, or four times."""
    settings = make_recipe(optimizer="adamw", weight_decay=0.5, learning_rate=0.1, rates=rates).training
    remaining = []
    for layer in (PHMLinear(128, 8, n=1), PHMLinear(128, 8, n=4, **options)):
        before = layer.weight.detach().clone()
        optimiser = build_optimiser(layer, settings)
        for parameter in layer.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimiser.step()
        remaining.append((layer.weight.detach().norm() / before.norm()).item())
    assert remaining == pytest.approx([1 - 0.05 * share] * 2, rel=1e-5)


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


def _rates(schedule: str, peak: float, warmup: int, steps: Sequence[int], end: int = 6) -> list[float]:
    settings = make_recipe(schedule=schedule, warmup=warmup, steps=end, learning_rate=peak).training
    return [build_schedule(settings)(step) for step in steps]


@given(step=st.integers(1, 10**6), warmup=st.integers(1, 20_000), width=st.sampled_from([256, 512]))
def test_inverse_sqrt_is_the_papers_formula(step: int, warmup: int, width: int) -> None:
    paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert _rates("inverse_sqrt", (width * warmup) ** -0.5, warmup, [step]) == [pytest.approx(paper, rel=1e-9)]


def test_rises_and_falls() -> None:
    assert _rates("inverse_sqrt", 0.01, 4, (1, 4, 16)) == pytest.approx([0.0025, 0.01, 0.005], rel=1e-12)
    assert _rates("inverse_sqrt", 1.0, 0, (1, 4)) == [1.0, 0.5]
    assert _rates("constant", 0.1, 2, (1, 2, 3, 1000)) == [0.05, 0.1, 0.1, 0.1]
    assert _rates("constant", 0.1, 0, [1]) == [0.1]
    assert _rates("linear", 1.0, 2, range(1, 8)) == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0])
    assert _rates("linear", 1.0, 0, range(1, 5), end=4) == pytest.approx([1.0, 0.75, 0.5, 0.25])


@pytest.mark.parametrize(
    ("precision", "has", "expected"),
    [("float32", True, torch.float32), ("bfloat16", True, torch.bfloat16), ("bfloat16", False, torch.float32)],
)
def test_bfloat16_where_the_device_has_it_or_float32_and_a_warning(
    monkeypatch: pytest.MonkeyPatch, capsys, precision: str, has: bool, expected: torch.dtype
) -> None:
    monkeypatch.setattr("phmctl.devices.has_bfloat16", lambda device: has)
    with build_autocast(CPU, precision)():
        assert torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype is expected
    assert ("training.precision" in capsys.readouterr().err) is not has


@pytest.mark.parametrize(
    ("machine", "avx512", "amx", "torchs_own", "expected"),
    [
        ("x86_64", True, False, True, True),
        ("x86_64", False, True, True, True),
        ("x86_64", False, False, True, False),  # AVX-512 without bfloat16: emulated
        ("aarch64", False, False, True, True),
        ("aarch64", False, False, False, False),
    ],
)
def test_a_cpu_must_have_the_instructions(
    monkeypatch: pytest.MonkeyPatch, machine: str, avx512: bool, amx: bool, torchs_own: bool, expected: bool
) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    kernels = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: torchs_own)
    monkeypatch.setattr(torch, "ops", SimpleNamespace(mkldnn=kernels))
    for name, answer in (("_is_avx512_bf16_supported", avx512), ("_is_amx_tile_supported", amx)):
        monkeypatch.setattr(torch.cpu, name, lambda answer=answer: answer, raising=False)
    assert has_bfloat16(CPU) is expected
