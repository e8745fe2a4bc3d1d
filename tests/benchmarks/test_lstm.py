import json

import pytest

from phmctl.benchmarks.lstm import MODES, bench_lstm
from phmctl.errors import DimensionError, UserError


def test_a_row_for_each_mode() -> None:
    rows = bench_lstm(8, 4, 2, batch=3, steps=5, rounds=3)
    assert [row.mode for row in rows] == list(MODES)
    for row in rows:
        assert min(row.dense.median, row.phm.median, row.torch.median) > 0
        assert row.phm_to_dense.lower <= row.phm_to_dense.median <= row.phm_to_dense.upper
        assert row.phm_to_torch == row.phm.median / row.torch.median
        dense = 4 * 4 * (8 + 4)
        assert (row.dense_parameters, row.phm_parameters) == (dense + 16, dense // 2 + 8 * 2**3 + 16)


def test_the_shape_of_table_1_is_the_default(monkeypatch) -> None:
    made = {}

    def compare(calls, **options):
        made.update(calls)
        raise InterruptedError

    monkeypatch.setattr("phmctl.benchmarks.lstm.compare", compare)
    with pytest.raises(InterruptedError):
        bench_lstm(modes=["eval"])
    assert list(made) == ["dense", "phm", "torch"]
    assert {name: call().shape for name, call in made.items()} == dict.fromkeys(made, (256, 40, 300))


def test_rows_are_json() -> None:
    (row,) = bench_lstm(8, 8, 4, batch=2, steps=3, algebra="quaternion", gates="fused", rounds=1, modes=["eval"])
    document = json.loads(json.dumps(row.as_json()))
    assert (document["algebra"], document["gates"], document["mode"]) == ("quaternion", "fused", "eval")
    assert set(document["phm_to_dense"]) == set(document["torch"]) == {"median", "lower", "upper"}


def test_what_a_user_can_get_wrong() -> None:
    with pytest.raises(UserError, match=r"no mode 'evaluation' \(did you mean 'eval'"):
        bench_lstm(8, 8, 4, modes=["evaluation"])
    for name in ("batch", "steps", "rounds"):
        with pytest.raises(UserError, match=f"{name} = 0 must be at least 1"):
            bench_lstm(8, 8, 4, **{name: 0})
    with pytest.raises(UserError, match="device 'gpu'"):
        bench_lstm(8, 8, 4, device="gpu")
    with pytest.raises(UserError, match="no gates 'all'"):
        bench_lstm(8, 8, 4, gates="all")
    with pytest.raises(DimensionError, match="n = 3 does not divide"):
        bench_lstm(8, 8, 3)
