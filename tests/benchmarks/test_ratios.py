"""Timings as ratios within a round."""

import pytest
import torch
from torch import nn

from phmctl import timing
from phmctl.benchmarks.ratios import Bench, Spread, compare, machine, training_call


def test_the_ratio_is_robust_to_a_machine_that_slows_down(monkeypatch: pytest.MonkeyPatch) -> None:
    now, speed = 0.0, 1.0
    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)

    def call(seconds: float, slowdown: float) -> None:
        nonlocal now, speed
        now += seconds * speed
        speed *= slowdown

    calls = {"base": lambda: call(0.01, 1.0), "other": lambda: call(0.02, 1.2)}
    result = compare("two calls", calls, rounds=8)
    assert result["other"].seconds.high > 1.5 * result["other"].seconds.low
    assert 1.6 < result["other"].ratio.median < 2.1
    assert result["base"].ratio == Spread(1, 1, 1)
    assert compare("two calls", calls, rounds=2, baseline="other")["base"].ratio.median < 1


def test_a_bar_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    compare("a call", {"a": lambda: None}, rounds=1)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # makes rich assume a terminal
    compare("a call", {"a": lambda: None}, rounds=1)
    assert "0/2" in capsys.readouterr().err


def test_a_table_has_a_column_for_each_figure() -> None:
    spread = Spread.of([5.0, 1.0, 4.0, 2.0, 3.0])
    assert spread == Spread(3.0, 1.0, 5.0)
    assert spread.inverse == Spread(1 / 3, 1 / 5, 1.0)
    row = {"name": "a", "call_seconds": Spread(0.001, 0.0005, 0.002), "ratio": Spread(1, 0.5, 2), "count": 1234}
    table = Bench("title", machine(), [row]).table()
    assert list(table.columns) == ["name", "call ms", "ratio", "count"]
    assert table.rows == [["a", "1.00", "1.00 (0.50–2.00)", "1,234"]]


def test_a_training_call_computes_all_gradients() -> None:
    layer, inputs = nn.Linear(3, 2).eval(), []
    x = torch.randn(4, 3)

    def forward(x: torch.Tensor) -> torch.Tensor:
        inputs.append(x)
        return layer(x)

    call = training_call(layer, forward, x)
    call()
    gradient = layer.weight.grad.clone()
    call()
    assert layer.training
    assert torch.equal(layer.weight.grad, gradient)  # not accumulated
    assert inputs[-1].grad.shape == x.shape
