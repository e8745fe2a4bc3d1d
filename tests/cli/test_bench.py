"""``bench`` through the command line: what it prints is what was measured."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from phmctl.cli.main import app
from phmctl.errors import UserError
from tests.conftest import TINY


def call(*arguments: object) -> str:
    result = CliRunner().invoke(app, ["bench", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.stdout


def tiny(*arguments: object, n: int = 4) -> list[object]:
    return ["miniature", "--n", n, *arguments, *(part for key in TINY for part in ("--set", key)), "--json"]


def test_layer_measures_each_n_tokens_and_mode() -> None:
    document = json.loads(call("layer", "-d", 16, "-k", 32, "--n", "2,4", "--tokens", "4,8", "--rounds", 2, "--json"))
    rows = document["rows"]
    assert {(row["n"], row["tokens"]) for row in rows} == {(2, 4), (2, 8), (4, 4), (4, 8)}
    assert len(rows) == 8
    assert document["processor"]
    for row in rows:
        assert row["ratio"]["low"] <= row["ratio"]["median"] <= row["ratio"]["high"]
        assert row["torch_parameters"] == 16 * 32 + 32


def test_layer_prints_a_table() -> None:
    assert "forward+backward" in call("layer", "-d", 16, "-k", 16, "--tokens", "4", "--rounds", 1)


def test_train_compares_three_models_on_the_same_batches(miniature_data: Path) -> None:
    result = json.loads(call("train", *tiny("--data", miniature_data, "--batches", 1, "--rounds", 1)))
    rows = {row["candidate"]: row for row in result["rows"]}
    assert set(rows) == {"dense", "phm-n4", "nn.Transformer"}
    assert rows["dense"]["speed"]["median"] == pytest.approx(1.0)
    assert rows["phm-n4"]["parameters"] < rows["dense"]["parameters"]
    # the bare model's norms and maps are the dense twin's, but for the order of the generator and the norms behind
    assert abs(rows["nn.Transformer"]["parameters"] - rows["dense"]["parameters"]) <= 4 * 32
    assert 0.5 < result["real_share"] <= 1
    assert rows["dense"]["products_allow"] == 1
    # maps, attention and the vocabulary alike
    assert rows["nn.Transformer"]["products_allow"] == pytest.approx(1, abs=0.05)
    assert result["batches"] == 1


def test_train_measures_a_composed_model_against_its_base(miniature_data: Path) -> None:
    given = ("--set", "model.compose_heads=bilinear")
    options = ("--data", miniature_data, "--batches", 1, "--rounds", 1, "--against", "base")
    result = json.loads(call("train", *tiny(*options, *given, n=1)))
    rows = {row["candidate"]: row for row in result["rows"]}
    assert set(rows) == {"dense", "base", "nn.Transformer"}
    assert (result["baseline"], rows["base"]["products_allow"]) == ("base", 1)
    assert rows["dense"]["products_allow"] < 1  # three attention modules, two d×d maps more in each
    with pytest.raises(UserError, match="no candidate 'bas'"):
        call("train", *tiny(*options[:-1], "bas"))


def test_train_times_the_maps_that_hold_factors(miniature_data: Path) -> None:
    given = ("--set", "model.parametrization=factors", "--set", "model.rank=3")
    result = json.loads(call("train", *tiny("--data", miniature_data, "--batches", 1, "--rounds", 1, *given)))
    rows = {row["candidate"]: row["executions"] for row in result["rows"]}
    assert rows["dense"] == rows["nn.Transformer"] == {}
    assert set(rows["phm-n4-r3"].values()) <= {"dense", "rank"}
    assert rows["phm-n4-r3"]


def test_decode_compares_the_dense_copies(miniature_data: Path) -> None:
    result = json.loads(call("decode", *tiny("--data", miniature_data, "--sentences", 8, "--rounds", 1)))
    rows = {row["candidate"]: row for row in result["rows"]}
    assert list(rows) == ["dense", "phm-n4"]
    assert result["sentences"] == 8
    assert all(row["products_allow"] == pytest.approx(1) for row in rows.values())
    for row in rows.values():
        assert row["sentences_per_second"] == pytest.approx(8 / row["search_seconds"]["median"])


def test_decode_of_a_composed_model_counts_its_products(miniature_data: Path) -> None:
    given = ("--set", "model.compose_heads=bilinear", "--against", "base", "--sentences", 2, "--rounds", 1)
    result = json.loads(call("decode", *tiny("--data", miniature_data, *given)))
    allowed = {row["candidate"]: row["products_allow"] for row in result["rows"]}
    assert allowed["base"] == 1
    assert allowed["dense"] < 1  # the composition takes products of its own
    with pytest.raises(UserError):
        call("decode", *tiny("--data", miniature_data, "--against", "bas"))


def test_lstm_measures_each_n_and_mode() -> None:
    small = ("lstm", "-d", 8, "-k", 8, "--n", "2,4", "--batch", 2, "--steps", 3, "--rounds", 1)
    rows = json.loads(call(*small, "--json"))["rows"]
    assert [(row["n"], row["mode"]) for row in rows] == [
        (n, mode) for n in (2, 4) for mode in ("forward+backward", "eval")
    ]
    assert "forward+backward" in call(*small)


def test_layer_of_a_rank_that_is_chosen() -> None:
    arguments = ["layer", "-d", 16, "-k", 32, "--tokens", 4, "--rounds", 1, "--execution", "rank", "--json"]
    (row, *_) = json.loads(call(*arguments, "--rank", 3))["rows"]
    assert row["phm_parameters"] == 16 * 32 // 4 + 3 * 4 * 3 + 32
