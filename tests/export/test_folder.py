"""An export's folder, and a disk that is full."""

import errno
from pathlib import Path

import pytest

from phmctl.errors import WriteFailedError
from phmctl.export.folder import write_export
from phmctl.runs import EXPORT


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make(folder: Path, mark: str) -> None:
    folder.mkdir()
    (folder / EXPORT).write_text(mark)


def test_a_full_disk_leaves_the_former_export_and_nothing_else(tmp_path: Path) -> None:
    def fill(folder: Path) -> dict[str, str]:
        (folder / "weights").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    make(tmp_path / "out", "former")
    with pytest.raises(WriteFailedError, match=r"cannot write .*out: No space left"):
        write_export(tmp_path / "out", fill, force=True)
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == [EXPORT]
