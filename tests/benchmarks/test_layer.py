import json

import pytest

from phmctl.backends import products
from phmctl.backends.machine import processor
from phmctl.backends.products import PACKED, libraries, preferred_library
from phmctl.benchmarks import layer
from phmctl.benchmarks.layer import MODES, bench_layer, table
from phmctl.errors import DimensionError, UserError


def test_a_row_for_each_number_of_tokens_and_mode() -> None:
    rows = bench_layer(16, 32, 4, [2, 8], rounds=2)
    assert [(row.tokens, row.mode) for row in rows] == [(t, mode) for t in (2, 8) for mode in MODES]
    for row in rows:
        assert row.dense.median > 0
        assert row.ratio.lower <= row.ratio.median <= row.ratio.upper
        assert (row.dense_parameters, row.phm_parameters) == (16 * 32 + 32, 16 * 32 // 4 + 64 + 32)


@pytest.mark.parametrize("library", libraries())
def test_the_dense_layer_stands_beside_by_the_same_library(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    by = layer.preferred_library
    monkeypatch.setattr(layer, "preferred_library", lambda name: asked.append(name) or by(name))
    with preferred_library(library):
        (row,) = bench_layer(16, 32, 4, [2], rounds=2, modes=["eval"])
    assert (row.choice, set(asked), row.processor) == (f"dense {library}", {library}, processor())
    assert row.to_twin.median > 0 < row.twin.median
    columns = table([row])
    assert f"dense {library}" in columns.rows[0]
    assert processor() in columns.title


@pytest.mark.skipif(PACKED not in libraries(kept=True), reason="a torch without oneDNN")
def test_the_dense_layer_is_laid_out_too_where_h_is(monkeypatch: pytest.MonkeyPatch) -> None:
    packed: list[tuple[int, ...]] = []
    lay_out = products._packed
    monkeypatch.setattr(products, "_packed", lambda weight: packed.append(tuple(weight.shape)) or lay_out(weight))
    with preferred_library(PACKED):
        rows = bench_layer(1024, 1040, 4, [2], rounds=1, executions=["dense", "auto"])
    assert [row.choice for row in rows if row.mode == "eval"] == ["dense packed"] * 2
    assert {row.choice for row in rows if row.mode != "eval"} == {"dense onednn"}
    assert packed == [(1040, 1024)] * 4  # H twice, and its dense twin's weight beside each


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
def test_rows_are_json(dtype: str) -> None:
    (row,) = bench_layer(8, 8, 4, [4], algebra="quaternion", dtype=dtype, rounds=1, modes=["eval"])
    document = json.loads(json.dumps(row.as_json()))
    assert (document["algebra"], document["dtype"], document["mode"]) == ("quaternion", dtype, "eval")
    assert set(document["ratio"]) == {"median", "lower", "upper"}


def test_what_a_user_can_get_wrong() -> None:
    with pytest.raises(UserError, match="no dtype 'float23' \\(did you mean 'float32'"):
        bench_layer(8, 8, 4, dtype="float23")
    with pytest.raises(UserError, match="tokens = 0"):
        bench_layer(8, 8, 4, [0])
    with pytest.raises(UserError, match="no mode 'evaluation' \\(did you mean 'eval'"):
        bench_layer(8, 8, 4, [1], modes=["evaluation"])
    with pytest.raises(UserError, match="rounds = 0"):
        bench_layer(8, 8, 4, [1], rounds=0)
    with pytest.raises(UserError, match="device 'gpu'"):
        bench_layer(8, 8, 4, [1], device="gpu")
    with pytest.raises(DimensionError, match="n = 3 does not divide"):
        bench_layer(8, 8, 3)


def test_executions_take_turns() -> None:
    rows = bench_layer(16, 16, 4, [4], rounds=2, executions=["dense", "rank"], parametrization="factors")
    assert [(row.mode, row.execution) for row in rows] == [(mode, name) for mode in MODES for name in ("dense", "rank")]
    assert {row.parametrization for row in rows} == {"factors"}
    assert rows[0].phm_parameters == 3 * 4 * 7 + 16 * 16 // 4 + 16


def test_rank_wants_factors() -> None:
    with pytest.raises(UserError, match="add parametrization 'factors'"):
        bench_layer(16, 16, 4, [4], executions=["rank"])
    bench_layer(16, 16, 4, [4], executions=["rank"], algebra="quaternion", rounds=1)
