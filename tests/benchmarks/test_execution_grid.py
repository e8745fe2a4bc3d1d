"""The grid of executions: what is measured, how auto's choice is judged."""

import json
from pathlib import Path

import pytest

from phmctl.backends.products import PACKED, libraries
from tools import execution_grid
from tools.execution_grid import NAMES, Cell, largest, measure, share_within

EVERY = {f"{name} {library}" for name in NAMES for library in libraries()}


def test_a_choice_is_judged_by_the_best_of_all() -> None:
    ratios = {"dense mkl": 1.2, "factored mkl": 1.0, "rank onednn": 1.05}
    cells = [Cell(8, 8, 4, 7, 64, "eval", ratios, auto) for auto in ratios]
    assert [one.excess for one in cells] == pytest.approx([0.2, 0.0, 0.05])
    assert share_within(cells) == pytest.approx(2 / 3)
    assert largest(cells, "eval", 64, 64) == 1.2
    assert largest(cells, "eval", 65, 100) == largest(cells, "forward+backward", 64, 64) == 0


def test_a_measured_cell() -> None:
    cells = measure(shapes=[(16, 32)], orders=[4], tokens=[2, 4], rounds=1)
    assert [(one.tokens, one.mode) for one in cells] == [
        (tokens, mode) for tokens in (2, 4) for mode in ("forward+backward", "eval")
    ]
    packed = {"dense packed"} if PACKED in libraries(kept=True) else set()
    assert all(set(one.ratios) == EVERY | (packed if one.mode == "eval" else set()) for one in cells)
    assert all(one.auto in one.ratios for one in cells)
    assert json.loads(json.dumps(cells[0].as_json()))["rank"] == 7


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(measure, "__kwdefaults__", {**measure.__kwdefaults__, "shapes": [(8, 16)], "orders": [2, 4]})
    arguments = ["--rounds", "1", "--tokens", "1", "3", "--output", str(tmp_path / "grid.json")]
    monkeypatch.setattr("sys.argv", ["execution_grid.py", *arguments])
    execution_grid.main()
    found = json.loads((tmp_path / "grid.json").read_text())
    assert len(found["cells"]) == 2 * 2 * 2
    assert found["processor"]
    within = [cell["excess"] <= 0.1 for cell in found["cells"]]
    assert found["within_a_tenth"] == pytest.approx(sum(within) / 8)
    assert "8 → 16" in capsys.readouterr().out
