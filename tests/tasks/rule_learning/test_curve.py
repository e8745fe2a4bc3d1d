import struct
import sys
from pathlib import Path

import pytest

from phmctl.tasks.rule_learning.evaluation import draw_curve

ENTRIES = [
    {"event": "train", "step": 10, "loss": 1.0},
    {"event": "train", "step": 20, "loss": 1e-3},
    {"event": "validation", "step": 20, "loss": 2e-3},
    {"event": "train", "step": 30, "loss": 0.0},  # has no place on a logarithmic axis
    {"event": "early_stop", "step": 30},
]


def test_a_picture_is_drawn(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    assert draw_curve(path, "hamilton", ENTRIES)
    content = path.read_bytes()
    assert content.startswith(b"\x89PNG\r\n")
    assert struct.unpack(">II", content[16:24]) == (720, 480)
    again = tmp_path / "again.png"
    draw_curve(again, "hamilton", ENTRIES)
    assert again.read_bytes() == content
    draw_curve(again, "hamilton", ENTRIES[:1])
    assert again.read_bytes() != content


def test_without_an_entry_there_is_an_empty_picture(tmp_path: Path) -> None:
    assert draw_curve(tmp_path / "loss.png", "hamilton", [])
    assert (tmp_path / "loss.png").is_file()


def test_without_matplotlib_a_warning_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert not draw_curve(tmp_path / "loss.png", "hamilton", ENTRIES)
    assert "no loss.png: matplotlib is not installed; pip install 'phmctl[report]'" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
