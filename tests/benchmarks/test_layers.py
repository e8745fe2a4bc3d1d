"""``bench layer``, ``bench lstm`` and the tools that measure, without a GPU."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from phmctl.benchmarks.layers import bench_layer, bench_lstm
from phmctl.errors import DimensionError, UserError


def test_factors_are_measured_with_both_executions() -> None:
    bench = bench_layer(16, 16, [4], [4], rank=3, rounds=1)
    assert [row["execution"] for row in bench.rows] == ["dense", "rank"] * 2
    assert {row["phm_parameters"] for row in bench.rows} == {3 * 4 * 3 + 16 * 16 // 4 + 16}
    natural = bench_layer(16, 16, [4], [4], parametrization="factors", executions=["rank"], rounds=1)
    assert [row["execution"] for row in natural.rows] == ["rank"] * 2
    fixed = bench_layer(16, 16, [4], [4], algebra="quaternion", executions=["rank"], rounds=1)
    assert fixed.about["algebra"] == "quaternion"


def test_invalid_arguments() -> None:
    # A learned rule that is stored as A has no factors for execution rank.
    for arguments in ({"dtype": "float23"}, {"device": "gpu"}, {"executions": ["mkl"]}, {"executions": ["rank"]}):
        with pytest.raises(UserError):
            bench_layer(8, 8, [4], [1], **arguments)
    with pytest.raises(DimensionError):
        bench_layer(8, 8, [3])
    for arguments in ({"device": "gpu"}, {"gates": "all"}):
        with pytest.raises(UserError):
            bench_lstm(8, 8, [4], **arguments)
    with pytest.raises(DimensionError):
        bench_lstm(8, 8, [3])


TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_gpu_check_without_a_gpu(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOLS / "gpu_check.py"), "--output", str(tmp_path / "figures.json")]
    process = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (process.returncode, process.stdout) == (2, "")
    assert not list(tmp_path.iterdir())


def test_gpu_check_measures_the_whole_table(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_check

    path = tmp_path / "figures.json"
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--smoke", "--output", str(path)])
    assert gpu_check.main() == 0
    document = json.loads(path.read_text())
    assert [section.__name__ in document for section in gpu_check.SECTIONS] == [True] * 7
    assert [row["stored as"] for row in document["layers"]] == ["nn.Linear", "A", "rank 4"]
    assert all(row["error"] < 0.02 for row in document["layers"])
    assert {row["model"] for row in document["training"]} == {"dense", "phm-n4", "phm-n4-r4"}
    assert all(row["speed"]["median"] > 0 for name in ("training", "decoding", "iwslt_sized") for row in document[name])
    assert len(document["launches"]) == 4


def test_layer_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import layer_table

    _, table = layer_table.markdown([(16, 32)], [2], rounds=1)
    assert [line.count("|") for line in table.splitlines()] == [7] * 7
