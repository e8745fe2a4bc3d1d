"""Timings as ratios within a round, of layers and models, also through the command line."""

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import nn

from phmctl import benchmarks
from phmctl.benchmarks import (
    Bench,
    Spread,
    bench_layer,
    machine,
    time_in_turns,
    training_call,
    variants_of,
)
from phmctl.errors import DimensionError, UserError
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection, ParallelSection, TranslationRecipe, TranslationTraining
from phmctl.tasks import trains
from tests.calls import call
from tests.conftest import TINY

RECIPE = TranslationRecipe(
    name="tiny",
    data=ParallelSection(card="miniature", vocabulary=64),
    model=TransformerSection(
        algebra="phm", n=4, width=32, feed_forward=64, heads=4, encoder_layers=1, decoder_layers=2, upsize=2
    ),
    training=TranslationTraining(steps=1, device="cpu"),
    decoding=DecodingSection(beam=3, batch_tokens=24),
)


def test_variants() -> None:
    assert list(variants_of(RECIPE)) == ["dense", "phm-n4-x2"]
    assert variants_of(RECIPE)["phm-n4-x2"] == RECIPE
    dense = RECIPE.model_copy(update={"model": RECIPE.model.dense_twin})
    assert variants_of(RECIPE)["dense"] == dense
    assert variants_of(dense) == {"dense": dense}


class Clock:
    """A clock that moves only by what the calls spend."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.log = 0.0, ""
        monkeypatch.setattr(benchmarks.time, "perf_counter", lambda: self.now)

    def call(self, name: str, seconds: float, growth: float = 1.0) -> Callable[[], None]:
        def spend() -> None:
            nonlocal seconds
            self.now += seconds
            self.log += name
            seconds *= growth

        return spend


def test_each_round_begins_with_another_call(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    timings = time_in_turns("calls", {name: clock.call(name, 1.0) for name in "abc"}, rounds=3)
    assert clock.log == "abc" + "abc" + "bca" + "cab"
    assert {timing.seconds for timing in timings.values()} == {Spread(1.0, 1.0, 1.0)}


def test_short_calls_are_repeated_to_fill_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)
    # The first call is slow, as if it compiled, and does not count.
    [timing] = time_in_turns("a call", {"s": clock.call("s", 0.0016, growth=1 / 8)}, rounds=1).values()
    assert len(clock.log) == 2 + 10
    assert timing.seconds.median < 0.0002


def test_the_ratio_is_robust_to_a_machine_that_slows_down(monkeypatch: pytest.MonkeyPatch) -> None:
    now, speed = 0.0, 1.0
    monkeypatch.setattr(benchmarks.time, "perf_counter", lambda: now)

    def call(seconds: float, slowdown: float) -> None:
        nonlocal now, speed
        now += seconds * speed
        speed *= slowdown

    calls = {"base": lambda: call(0.01, 1.0), "other": lambda: call(0.02, 1.2)}
    result = time_in_turns("two calls", calls, rounds=8)
    assert result["other"].seconds.high > 1.5 * result["other"].seconds.low
    assert 1.6 < result["other"].ratio.median < 2.1
    assert result["base"].ratio == Spread(1, 1, 1)


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


def test_factors_are_measured_with_both_executions() -> None:
    bench = bench_layer(16, 16, [4], [4], rank=3, rounds=1)
    assert [row["execution"] for row in bench.rows] == ["dense", "rank"] * 2
    assert {row["phm_parameters"] for row in bench.rows} == {3 * 4 * 3 + 16 * 16 // 4 + 16}


def test_invalid_arguments() -> None:
    for arguments in ({"dtype": "float23"}, {"device": "gpu"}):
        with pytest.raises(UserError):
            bench_layer(8, 8, [4], [1], **arguments)
    with pytest.raises(DimensionError):
        bench_layer(8, 8, [3])


# --------------------------------------------------------------------------------------------- through the command line


def bench(*arguments: object) -> str:
    return call("bench", *arguments).stdout


def tiny(*arguments: object, n: int = 4) -> list[object]:
    return ["miniature", "--n", n, *arguments, *(part for key in TINY for part in ("--set", key)), "--json"]


def test_layer_measures_each_n_tokens_and_mode() -> None:
    document = json.loads(bench("layer", "-d", 16, "-k", 32, "--n", "2,4", "--tokens", "4,8", "--rounds", 2, "--json"))
    rows = document["rows"]
    modes = ("forward+backward", "forward")
    assert [(row["n"], row["tokens"], row["mode"]) for row in rows] == [*product((2, 4), (4, 8), modes)]
    assert document["processor"]
    for row in rows:
        assert row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
        assert row["torch_parameters"] == 16 * 32 + 32
        assert row["phm_parameters"] == 16 * 32 // row["n"] + row["n"] ** 3 + 32


def test_train_compares_models_on_the_same_batches(miniature_data: Path, tiny_recipe: TranslationRecipe) -> None:
    result = json.loads(bench("train", *tiny("--data", miniature_data, "--batches", 1, "--rounds", 1)))
    rows = {row["candidate"]: row for row in result["rows"]}
    assert set(rows) == {"dense", "phm-n4"}
    assert rows["dense"]["speed"]["median"] == pytest.approx(1.0)
    assert rows["phm-n4"]["parameters"] < rows["dense"]["parameters"]
    assert result["batches"] == 1
    task = trains(tiny_recipe).open(tiny_recipe, miniature_data)
    tokens = task.cost(task.plan(0)[0]).tokens  # of both sides, as in train and compare
    seconds = rows["dense"]["step_seconds"]["median"]
    assert rows["dense"]["tokens_per_second"] * seconds == pytest.approx(tokens, rel=1e-3)
