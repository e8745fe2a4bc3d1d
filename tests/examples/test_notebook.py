"""``examples/first_hour.ipynb`` runs from its first cell to its last, and is stored without outputs."""

import json
from pathlib import Path

import pytest

from phmctl import shipped

ROOT = Path(__file__).parent.parent.parent
NOTEBOOK = ROOT / "examples" / "first_hour.ipynb"


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    cells = [cell for cell in json.loads(NOTEBOOK.read_text("utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    program = "\n".join("".join(cell["source"]) for cell in cells)  # the cells are plain Python
    for text, changed in (("STEPS = 1800", "STEPS = 3"), ('split="test"', 'split="valid"')):
        assert text in program
        program = program.replace(text, changed)
    for split, size in (("train", 1000), ("valid", 100), ("test", 20)):
        monkeypatch.setitem(shipped.SIZES, split, size)
    monkeypatch.chdir(tmp_path)
    exec(compile(program, NOTEBOOK.name, "exec"), {})
    printed = capsys.readouterr().out
    assert "PHMLinear 264256" in printed  # 4·4·4 + 4·512·128 + 2048
    assert "n = 4:" in printed
    assert len(list(tmp_path.glob("runs/first-hour/*/v001"))) == 2
