import gzip
from collections.abc import Iterable
from pathlib import Path

import pytest

from phmctl.answering.lines import open_answers
from phmctl.errors import OutputError


def write(path: Path, groups: Iterable[str], *, fail: bool = False) -> None:
    """Write groups of answers; raise ZeroDivisionError after them if `fail` is set."""
    with open_answers(path) as output:
        for group in groups:
            output(group)
        if fail:
            raise ZeroDivisionError


def test_answers_are_written_as_they_come(tmp_path: Path) -> None:
    path = tmp_path / "new" / ("o" * 255)  # no longer name is made from it
    with open_answers(path) as output:
        output("one\nzwölf\n")
        assert path.read_text() == "one\nzwölf\n"
        output("three\n")
    assert path.read_text() == "one\nzwölf\nthree\n"
    assert list(path.parent.iterdir()) == [path]


def test_a_name_of_a_compressed_file_makes_one(tmp_path: Path) -> None:
    write(tmp_path / "new.gz", ["one\n", "zwölf\n"])
    assert gzip.decompress((tmp_path / "new.gz").read_bytes()).decode() == "one\nzwölf\n"


def test_other_files_are_refused_and_stay(tmp_path: Path) -> None:
    for other in (tmp_path, Path("/dev/null"), tmp_path / ("b" * 256)):
        with pytest.raises(OutputError), open_answers(other):
            pass
    assert list(tmp_path.iterdir()) == []


def test_an_older_file_stays_until_the_first_answer_and_an_early_failure_creates_no_file(tmp_path: Path) -> None:
    path = tmp_path / "out"
    path.write_text("older and longer than the answers\n")
    for output in (path, tmp_path / "new"):
        with pytest.raises(ZeroDivisionError):
            write(output, [], fail=True)
    assert path.read_text() == "older and longer than the answers\n"
    assert list(tmp_path.iterdir()) == [path]
    with pytest.raises(ZeroDivisionError):
        write(path, ["first\n"], fail=True)
    assert path.read_text() == "first\n"
    write(path, [])
    assert path.read_text() == ""
