"""``examples/heal.py``, ``rates.py`` and ``translator.py`` run, with few steps and small networks."""

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from phmctl.runs import Run

EXAMPLES = Path(__file__).parent.parent.parent / "examples"


def run(name: str, *arguments: str, monkeypatch: pytest.MonkeyPatch, **constants: int) -> None:
    specification: Any = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    for constant, value in constants.items():
        monkeypatch.setattr(module, constant, value)
    monkeypatch.setattr(sys, "argv", [name, *arguments])
    module.main()


def test_heal(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sklearn")
    run("heal", "--steps", "2", "--seeds", "1", monkeypatch=monkeypatch)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[-4:-1]] == ["dense", "converted", "healed"]
    assert "352,074 → 89,610 parameters (25.5%)" in lines


def test_rates(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    run("rates", "--steps", "1", "--seeds", "1", monkeypatch=monkeypatch, WIDTH=16, LENGTH=8, LAYERS=1)
    assert len(capsys.readouterr().out.splitlines()) == 8


def test_translator(
    tiny_run: Run, miniature_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PHMCTL_DATA", str(miniature_data))
    arguments = (str(tiny_run.folder), "--steps", "2", "--share", "0.5", "--lines", "8")
    run("translator", *arguments, monkeypatch=monkeypatch, CALIBRATION=1)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    sizes = [int(row[-4].replace(",", "")) for row in rows]
    assert [row[0] for row in rows] == ["dense", "converted", "healed,"]
    assert sizes[0] > sizes[1] > 4 * sizes[2]
