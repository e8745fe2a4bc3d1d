"""``bench layer`` and ``bench lstm``."""

import json

import pytest

from phmctl.benchmarks.layers import bench_layer, bench_lstm
from phmctl.errors import DimensionError, UserError


def test_a_row_for_each_order_number_of_tokens_and_mode() -> None:
    bench = bench_layer(16, 32, [2, 4], [2, 8], rounds=2)
    keys = [(row["n"], row["tokens"], row["mode"], row["execution"]) for row in bench.rows]
    modes = ("forward+backward", "forward")
    assert keys == [(n, tokens, mode, "dense") for n in (2, 4) for tokens in (2, 8) for mode in modes]
    for row in bench.rows:
        assert 0 < row["ratio"].low <= row["ratio"].median <= row["ratio"].high
        assert row["torch_parameters"] == 16 * 32 + 32
        assert row["phm_parameters"] == 16 * 32 // row["n"] + row["n"] ** 3 + 32
    table = bench.table()
    assert len(table.rows) == len(bench.rows)
    assert bench.about["processor"] in table.title


def test_factors_are_measured_by_both_executions() -> None:
    bench = bench_layer(16, 16, [4], [4], rank=3, rounds=1)
    assert [row["execution"] for row in bench.rows] == ["dense", "rank"] * 2
    assert {row["phm_parameters"] for row in bench.rows} == {3 * 4 * 3 + 16 * 16 // 4 + 16}
    natural = bench_layer(16, 16, [4], [4], parametrization="factors", executions=["rank"], rounds=1)
    assert [row["execution"] for row in natural.rows] == ["rank"] * 2
    fixed = bench_layer(16, 16, [4], [4], algebra="quaternion", executions=["rank"], rounds=1)
    assert fixed.about["algebra"] == "quaternion"


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_figures_are_json(dtype: str) -> None:
    document = json.loads(
        json.dumps(bench_layer(8, 8, [4], [4], algebra="quaternion", dtype=dtype, rounds=1).as_json())
    )
    assert (document["algebra"], document["dtype"], document["in_features"]) == ("quaternion", dtype, 8)
    assert set(document["rows"][0]["ratio"]) == {"median", "low", "high"}


def test_an_lstm_trains_and_answers_beside_torchs() -> None:
    bench = bench_lstm(8, 4, [2], batch=3, steps=5, rounds=3)
    assert [row["mode"] for row in bench.rows] == ["forward+backward", "eval"]
    for row in bench.rows:
        assert 0 < row["ratio"].low <= row["ratio"].median <= row["ratio"].high
        assert row["torch_parameters"] == 4 * (4 * (8 + 4) + 2 * 4)
        assert row["phm_parameters"] < row["torch_parameters"]
    fused = bench_lstm(8, 8, [4], batch=2, steps=3, algebra="quaternion", gates="fused", rounds=1)
    assert json.loads(json.dumps(fused.as_json()))["gates"] == "fused"


def test_what_a_user_can_get_wrong() -> None:
    for wrong in ({"dtype": "float23"}, {"tokens": [0]}, {"rounds": 0}, {"device": "gpu"}, {"executions": ["mkl"]}):
        with pytest.raises(UserError):
            bench_layer(8, 8, [4], **{"tokens": [1], **wrong})
    with pytest.raises(UserError):
        bench_layer(16, 16, [4], [4], executions=["rank"])  # a learned rule that is held as A has no factors
    with pytest.raises(DimensionError):
        bench_layer(8, 8, [3])
    for wrong in ({"batch": 0}, {"steps": 0}, {"rounds": 0}, {"device": "gpu"}, {"gates": "all"}):
        with pytest.raises(UserError):
            bench_lstm(8, 8, [4], **wrong)
    with pytest.raises(DimensionError):
        bench_lstm(8, 8, [3])
