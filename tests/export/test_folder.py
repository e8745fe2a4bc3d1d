"""An export's folder: what a killed export left beside it, and a disk that is full."""

import errno
from pathlib import Path

import pytest

from phmctl.errors import WriteFailedError
from phmctl.export.folder import clear_output, write_export
from phmctl.runs import EXPORT


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def make(folder: Path, mark: str) -> None:
    folder.mkdir()
    (folder / EXPORT).write_text(mark)


@pytest.mark.parametrize("stands", [True, False])
def test_what_a_killed_export_left_is_cleared(tmp_path: Path, stands: bool) -> None:
    make(tmp_path / ".out.0123abcd.tmp", "half made")
    make(tmp_path / ".out.0123abcd.old", "former")
    make(tmp_path / ".another.0123abcd.old", "of another export")
    if stands:
        make(tmp_path / "out", "new")
    clear_output(tmp_path / "out")
    assert names(tmp_path) == [".another.0123abcd.old", "out"]
    assert (tmp_path / "out" / EXPORT).read_text() == ("new" if stands else "former")


def test_a_full_disk_leaves_the_former_export_and_nothing_else(tmp_path: Path) -> None:
    def fill(folder: Path) -> dict[str, str]:
        (folder / "weights").write_text("half")
        raise OSError(errno.ENOSPC, "No space left on device")

    make(tmp_path / "out", "former")
    with pytest.raises(WriteFailedError, match=r"cannot write .*out: No space left"):
        write_export(tmp_path / "out", fill, force=True)
    assert names(tmp_path) == ["out"]
    assert names(tmp_path / "out") == [EXPORT]
