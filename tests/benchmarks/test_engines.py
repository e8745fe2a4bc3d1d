"""A run's engines side by side."""

from pathlib import Path

import pytest

from phmctl.benchmarks.decoding import bench_engines
from phmctl.errors import UserError
from tests.tasks.translation.runs import make_run


def test_engines_translate_the_same_lines(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    run = make_run(tmp_path)
    result = bench_engines(run, ["torch", "onnx"], sentences=5, rounds=1)
    assert [row["engine"] for row in result.rows] == ["torch", "onnx"]
    assert [row["same"] for row in result.rows] == [5, 5]
    assert result.rows[0]["speed"].median == 1.0
    assert all(row["sentences_per_second"] == pytest.approx(5 / row["search_seconds"].median) for row in result.rows)
    document = result.as_json()
    assert document["rows"][1]["bleu"] == document["rows"][0]["bleu"]
    assert document["decoding"]["beam"] == run.recipe.decoding.beam


def test_an_engine_that_is_none(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for wrong in ("onyx", "onnx:int8"):
        with pytest.raises(UserError):
            bench_engines(run, [wrong])
