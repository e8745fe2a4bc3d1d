"""Lines that arrive, and the file of answers."""

import gzip
import io
import os
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.answering.lines import arriving_lines, in_groups, open_answers
from phmctl.data.readers import read_lines
from phmctl.errors import DataError, OutputError

LETTERS = st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"])  # a NUL means UTF-16 in the first line
LINES = st.lists(st.text(LETTERS, max_size=8), max_size=12)


class Pipe:
    """A stdin that the test writes into."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        reading, self.writing = os.pipe()
        self.stdin = os.fdopen(reading)
        monkeypatch.setattr(sys, "stdin", self.stdin)

    def write(self, content: bytes) -> None:
        os.write(self.writing, content)

    def close(self) -> None:
        os.close(self.writing)


@pytest.fixture
def pipe(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pipe]:
    made = Pipe(monkeypatch)
    yield made
    made.stdin.close()


def test_a_program_that_waits_for_its_answer_gets_it_and_lines_that_have_arrived_are_grouped(pipe: Pipe) -> None:
    groups = arriving_lines(None, limit=4)
    pipe.write(b"one\ntwo\nthr")
    assert next(groups) == ["one", "two"]
    pipe.write(b"ee\r\n\n")
    assert next(groups) == ["three", ""]
    pipe.write(b"x\n" * 5 + b"the last")
    pipe.close()
    assert list(groups) == [["x"] * 4, ["x"], ["the last"]]


@given(lines=LINES, limit=st.integers(1, 5), end=st.booleans(), chunk=st.integers(1, 7))
def test_a_pipe_gives_the_lines_of_a_file(tmp_path_factory, lines, limit, end, chunk) -> None:
    content = "\n".join([*lines, ""] if end else lines).encode()
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        pipe = Pipe(patch)
        for start in range(0, len(content), chunk):
            pipe.write(content[start : start + chunk])
        pipe.close()
        groups = list(arriving_lines(None, limit=limit))
        pipe.stdin.close()
    assert [line for group in groups for line in group] == list(read_lines(path))
    assert all(groups)
    assert [line for group in arriving_lines(path, limit=limit) for line in group] == list(read_lines(path))


def test_a_compressed_file_a_named_pipe_and_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"a\nb\n"))
    assert list(arriving_lines(tmp_path / "text.gz", limit=1)) == [["a"], ["b"]]
    os.mkfifo(tmp_path / "fifo")
    writer = threading.Thread(target=lambda: (tmp_path / "fifo").write_bytes(b"a\nb"))
    writer.start()
    assert list(arriving_lines(tmp_path / "fifo")) == [["a"], ["b"]]
    writer.join()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\nb")))
    assert list(arriving_lines(None)) == [["a", "b"]]


def test_no_file_no_stdin_and_nothing_in_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pipe: Pipe) -> None:
    with pytest.raises(DataError, match="nothing"):
        list(arriving_lines(tmp_path / "nothing"))
    pipe.close()
    assert list(arriving_lines(None)) == []
    monkeypatch.setattr(sys, "stdin", None)
    with pytest.raises(DataError):
        list(arriving_lines(None))
    assert list(in_groups([])) == []
    assert list(in_groups("abc", 2)) == [["a", "b"], ["c"]]


# -------------------------------------------------------------------------------------------------- the file of answers


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
