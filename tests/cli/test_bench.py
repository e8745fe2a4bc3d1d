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
    rows = json.loads(call("layer", "-d", 16, "-k", 32, "--n", "2,4", "--tokens", "4,8", "--rounds", 2, "--json"))
    assert {(row["n"], row["tokens"]) for row in rows} == {(2, 4), (2, 8), (4, 4), (4, 8)}
    assert len(rows) == 12
    for row in rows:
        assert row["ratio"]["lower"] <= row["ratio"]["median"] <= row["ratio"]["upper"]
        assert row["dense_parameters"] == 16 * 32 + 32


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
    assert rows["dense"]["allowed"] == 1
    assert rows["nn.Transformer"]["allowed"] == pytest.approx(1, abs=0.05)  # maps, attention and the vocabulary alike
    assert rows["phm-n4"]["multiplications"] > 0


def test_train_measures_a_composed_model_against_its_base(miniature_data: Path) -> None:
    given = ("--set", "model.compose_heads=bilinear")
    options = ("--data", miniature_data, "--batches", 1, "--rounds", 1, "--against", "base")
    result = json.loads(call("train", *tiny(*options, *given, n=1)))
    rows = {row["candidate"]: row for row in result["rows"]}
    assert set(rows) == {"dense", "base", "nn.Transformer"}
    assert (result["baseline"], rows["base"]["allowed"]) == ("base", 1)
    # three attention modules, two d×d maps more in each, forward and twice backward, for each row of the batch
    assert rows["dense"]["multiplications"] > rows["base"]["multiplications"]
    assert rows["dense"]["allowed"] == pytest.approx(rows["base"]["multiplications"] / rows["dense"]["multiplications"])
    with pytest.raises(UserError, match="no candidate 'bas'"):
        call("train", *tiny(*options[:-1], "bas"))


def test_decode_reports_against_sgemm_and_no_cache(miniature_data: Path) -> None:
    options = ("--data", miniature_data, "--sentences", 8, "--uncached", 2, "--rounds", 1)
    result = json.loads(call("decode", *tiny(*options)))
    assert {row["candidate"] for row in result["rows"]} == {"dense", "phm-n4"}
    assert result["sentences"] == 8
    assert all(row["sgemm_share"] > 0 for row in result["rows"])


def test_lstm_measures_each_n_and_mode() -> None:
    rows = json.loads(call("lstm", "-d", 8, "-k", 8, "--n", "2,4", "--batch", 2, "--steps", 3, "--rounds", 1, "--json"))
    assert [(row["n"], row["mode"]) for row in rows] == [
        (n, mode) for n in (2, 4) for mode in ("forward+backward", "eval")
    ]
    assert all(row["phm_to_dense"]["median"] > 0 for row in rows)


def test_lstm_prints_a_table() -> None:
    assert "forward+backward" in call("lstm", "-d", 8, "-k", 8, "--n", 4, "--batch", 2, "--steps", 3, "--rounds", 1)


def test_encoder_reports_steps_a_second() -> None:
    small = ("encoder", "--width", 16, "--layers", 1, "--batch", 2, "--rounds", 1)
    rows = json.loads(call(*small, "--n", 4, "--json"))
    assert [row["candidate"] for row in rows] == ["dense", "phm-n4", "nn.TransformerEncoder"]
    assert all(row["steps_per_second"] > 0 for row in rows)
    assert "steps/s" in call(*small, "--algebra", "quaternion")


def test_encoder_refuses_what_does_not_fit() -> None:
    with pytest.raises(UserError, match="n = 3 does not divide width = 16"):
        call("encoder", "--width", 16, "--n", 3)


def test_layer_of_a_rank_that_is_chosen() -> None:
    arguments = ["layer", "-d", 16, "-k", 32, "--tokens", 4, "--rounds", 1, "--execution", "rank", "--json"]
    (row, *_) = json.loads(call(*arguments, "--parametrization", "factors", "--rank", 3))
    assert row["phm_parameters"] == 16 * 32 // 4 + 3 * 4 * 3 + 32


def test_a_rank_wants_factors() -> None:
    with pytest.raises(UserError, match="add parametrization 'factors'"):
        call("layer", "-d", 16, "-k", 16, "--rank", 3)
