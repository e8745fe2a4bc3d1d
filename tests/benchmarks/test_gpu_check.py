"""What runs where there is a GPU, as far as it runs without one."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_it_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOLS / "gpu_check.py"), "--output", str(tmp_path / "found.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("no CUDA device")
    assert not list(tmp_path.iterdir())


def test_a_row_for_each_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_check

    rows = gpu_check.bench_layers("cpu", shapes=[(8, 16)], orders=[4], tokens=[2], compiled=[False], rounds=1)
    assert [(row["dtype"], row["mode"]) for row in rows] == [
        (dtype, mode) for dtype in ("bfloat16", "float32") for mode in ("forward+backward", "eval")
    ]
    for row in json.loads(json.dumps(rows)):
        assert set(row["timings"]) == {"nn.Linear", "rule", "factors"}
        assert row["timings"]["nn.Linear"]["ratio"]["median"] == 1
        assert row["timings"]["rule"]["ratio"]["median"] > 0


def test_a_row_for_each_size_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_check

    monkeypatch.setattr(gpu_check, "VOCABULARY", 64)
    (row,) = json.loads(json.dumps(gpu_check.bench_steps("cpu", sentences=[2], rounds=1)))
    assert row["sentences"] == 2
    assert row["timings"]["eager"]["ratio"]["median"] == 1
    assert row["timings"]["graphs"]["ratio"]["median"] > 0
