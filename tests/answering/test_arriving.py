import gzip
import io
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.answering.lines import arriving_lines, in_groups
from phmctl.data.readers import read_lines
from phmctl.errors import DataError

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


def test_a_line_without_end_on_a_pipe_is_refused_before_it_fills_the_memory(
    pipe: Pipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("phmctl.answering.lines.LONGEST_LINE", 1 << 20)
    monkeypatch.setattr("phmctl.data.readers.LONGEST_LINE", 1 << 20)
    sent = 0

    def send() -> None:
        nonlocal sent
        with suppress(BrokenPipeError):
            for _ in range(40):
                os.write(pipe.writing, bytes(1 << 17).replace(b"\0", b"x"))
                sent += 1
        pipe.close()

    sender = threading.Thread(target=send)
    sender.start()
    with pytest.raises(DataError, match="line 1"):
        list(arriving_lines(None))
    pipe.stdin.close()
    sender.join()
    assert sent < 20


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
