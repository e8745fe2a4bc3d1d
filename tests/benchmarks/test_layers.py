"""``bench layer``, ``bench lstm`` and ``make gpu-check``, without a GPU."""

import json
import subprocess
import sys
import time
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
    assert {measure.__name__ for measure in gpu_check.MEASURES} - document.keys() == {"tests"}
    assert [row["stored as"] for row in document["layers"]] == ["nn.Linear", "A", "rank 4"] * 2
    assert all(row["error"] < 0.02 for name in ("layers", "lstm") for row in document[name])
    assert {row["model"] for row in document["training"]} == {"dense", "phm-n4", "phm-n4-r4"}
    speeds = ("training", "compiled_training", "compiled_fast_training", "decoding", "iwslt_sized")
    assert all(row["speed"]["median"] > 0 for name in speeds for row in document[name])
    assert len(document["launches"]) == len(document["attention"]["rows"]) == len(document["kernels"]) == 4
    assert all(row["kernels"][0]["milliseconds"] > 0 for row in document["kernels"])


def test_gpu_check_stops_in_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_check

    def quick(*_: object) -> int:
        return 1

    def slow(*_: object) -> None:
        time.sleep(60)

    path = tmp_path / "figures.json"
    monkeypatch.setattr(gpu_check, "MEASURES", (quick, slow, gpu_check.tests))
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--smoke", "--minutes", "0.002", "--output", str(path)])
    gpu_check.main()
    document = json.loads(path.read_text())
    assert [document[name] == 1 for name in ("quick", "slow", "tests")] == [True, False, False]
