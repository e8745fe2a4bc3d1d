"""float32 or bfloat16."""

from types import SimpleNamespace

import pytest
import torch

from phmctl.devices import has_bfloat16
from phmctl.training.optimiser import build_autocast

CPU = torch.device("cpu")


def _product_type(precision: str) -> torch.dtype:
    with build_autocast(CPU, precision)():
        return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype


def test_float32_is_float32() -> None:
    assert _product_type("float32") is torch.float32


def test_bfloat16_where_the_device_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phmctl.devices.has_bfloat16", lambda device: True)
    assert _product_type("bfloat16") is torch.bfloat16


def test_float32_and_a_warning_where_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("phmctl.devices.has_bfloat16", lambda device: False)
    assert _product_type("bfloat16") is torch.float32
    assert "cpu has no bfloat16 arithmetic here; float32 is used" in capsys.readouterr().err


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
    _pretend(monkeypatch, machine, torchs_own)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx, raising=False)
    assert has_bfloat16(CPU) is expected


@pytest.mark.parametrize("torchs_own", [True, False])
def test_a_torch_without_the_private_names_is_asked_otherwise(
    monkeypatch: pytest.MonkeyPatch, torchs_own: bool
) -> None:
    _pretend(monkeypatch, "x86_64", torchs_own)
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.delattr(torch.cpu, name, raising=False)
    assert has_bfloat16(CPU) is torchs_own


def _pretend(monkeypatch: pytest.MonkeyPatch, machine: str, torchs_own: bool) -> None:
    monkeypatch.setattr("platform.machine", lambda: machine)
    check = SimpleNamespace(_is_mkldnn_bf16_supported=lambda: torchs_own)
    monkeypatch.setattr(torch, "ops", SimpleNamespace(mkldnn=check))
