"""``bench`` through the command line."""

import json
from itertools import product
from pathlib import Path

import pytest

from phmctl.recipe.schema import TranslationRecipe
from phmctl.tasks import trains
from tests.calls import call
from tests.conftest import TINY


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
