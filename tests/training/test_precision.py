"""float32 or bfloat16."""

import pytest
import torch

from phmctl.training.precision import build_autocast, has_bfloat16

CPU = torch.device("cpu")


def _product_type(precision: str) -> torch.dtype:
    with build_autocast(CPU, precision)():
        return torch.mm(torch.ones(2, 2), torch.ones(2, 2)).dtype


def test_float32_is_float32() -> None:
    assert _product_type("float32") is torch.float32


def test_bfloat16_where_the_device_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("phmctl.training.precision.has_bfloat16", lambda device: True)
    assert _product_type("bfloat16") is torch.bfloat16


def test_float32_and_a_warning_where_not(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("phmctl.training.precision.has_bfloat16", lambda device: False)
    assert _product_type("bfloat16") is torch.float32
    assert "cpu has no bfloat16 arithmetic here; float32 is used" in capsys.readouterr().err


def test_the_device_is_asked() -> None:
    assert has_bfloat16(CPU) in (True, False)
