"""``examples/first_hour.ipynb`` runs from its first cell to its last, and is stored without outputs."""

from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parent.parent.parent
NOTEBOOK = ROOT / "examples" / "first_hour.ipynb"


def test_the_notebook_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(not cell.outputs and cell.execution_count is None for cell in code)
    assert "STEPS = 1800" in code[0].source
    code[0].source = code[0].source.replace("STEPS = 1800", "STEPS = 3")
    code[-2].source = code[-2].source.replace('"test"', '"valid"')
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    for cell in code:
        exec(cell.source, names)  # the cells are plain Python
    printed = capsys.readouterr().out
    assert "PHMLinear 264256" in printed  # 4·4·4 + 4·512·128 + 2048
    assert "n = 4:" in printed
    assert len(list(tmp_path.glob("runs/first-hour/*/v001"))) == 2
