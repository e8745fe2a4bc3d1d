"""The tools that measure: what runs where there is a GPU, as far as it runs without one; the table of layers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).resolve().parents[2] / "tools"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_without_a_gpu_gpu_check_says_so(tmp_path: Path) -> None:
    command = [sys.executable, str(TOOLS / "gpu_check.py"), "--output", str(tmp_path / "figures.json")]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert not list(tmp_path.iterdir())


def test_gpu_check_measures_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import gpu_check

    monkeypatch.setattr(gpu_check, "bench_lstm", lambda **asked: gpu_check.bench_layer(8, 8, [4], [2], rounds=1))
    layers = gpu_check.bench_layers("cpu", shapes=[(8, 16)], tokens=[2], compiled=[False], rounds=1)
    cells = {
        (one["dtype"], one["rank"], row["execution"]) for one in json.loads(json.dumps(layers)) for row in one["rows"]
    }
    executions = [(None, "dense"), (4, "dense"), (4, "rank")]
    assert cells == {(dtype, *cell) for dtype in ("bfloat16", "float32") for cell in executions}


def test_the_table_of_layers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import layer_table

    processor, table = layer_table.markdown([(16, 32)], [2], rounds=1)
    assert "threads" in processor
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert {len(row) for row in rows} == {6}
    assert [row[1:4] for row in rows[2:]] == [
        ["4", "A", "dense"],
        ["4", "R = 4", "dense"],
        ["4", "R = 4", "rank"],
        ["8", "R = 12", "dense"],
        ["8", "R = 12", "rank"],
    ]
