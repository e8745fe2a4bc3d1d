"""Read lines in groups, answer them, and write the answers: ``phmctl decode``.

A terminal and a program that waits for each answer are answered at once; lines that have already arrived are answered
together, so that the model sorts and batches them.
"""

import fcntl
import os
import stat
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from io import BufferedReader, FileIO
from itertools import count, islice
from pathlib import Path
from typing import Any, BinaryIO, TypeVar, cast

from phmctl.console import emit, json_text, note, warn
from phmctl.data.readers import LONGEST_LINE, decode_line, open_bytes, raw_lines, reading
from phmctl.decoding.model import Advance, Model, ignore
from phmctl.errors import DataError, OutputError
from phmctl.files import writing
from phmctl.metrics.text import Degenerate

T = TypeVar("T")

_PIPE_BYTES = 1 << 16  # capacity of a pipe on Linux


def arriving_lines(path: Path | None, *, limit: int = 1024) -> Iterator[list[str]]:
    """Yield the lines of a file, or of stdin, in groups of 1 to `limit` lines.

    A group of a pipe or a terminal holds the lines that have arrived. Both must be UTF-8.

    Raises DataError if the file cannot be read or a line is not UTF-8.
    """
    if path is None and sys.stdin is None:
        raise DataError("stdin is closed; name the text with --input FILE")
    name = path or Path("stdin")
    numbers = count(1)
    with reading(name), open_bytes(path) if path else nullcontext(sys.stdin.buffer) as handle:
        for group in _raw_groups(handle, limit):
            lines: list[str] = []
            try:
                for raw in group:
                    lines.append(decode_line(raw, name, next(numbers)))
            except DataError:
                if lines:  # the lines before the malformed line are answered first
                    yield lines
                raise
            yield lines


def in_groups(items: Iterable[T], limit: int = 1024) -> Iterator[list[T]]:
    iterator = iter(items)
    while group := list(islice(iterator, limit)):
        yield group


def _raw_groups(handle: BinaryIO, limit: int) -> Iterator[list[bytes]]:
    is_system_file = isinstance(getattr(handle, "raw", None), FileIO)  # neither decompressed nor in memory
    if is_system_file and not stat.S_ISREG(os.fstat(handle.fileno()).st_mode):
        return _raw_groups_of_pipe(cast("BufferedReader", handle), limit)
    buffered = handle if hasattr(handle, "peek") else BufferedReader(cast("Any", handle))
    return in_groups(raw_lines(cast("BufferedReader", buffered)), limit)


def _raw_groups_of_pipe(handle: BufferedReader, limit: int) -> Iterator[list[bytes]]:
    """Yield the complete lines that have arrived; wait only if there are none."""
    incomplete = b""
    while len(incomplete) <= LONGEST_LINE:
        chunk = handle.read1(_PIPE_BYTES)
        if not chunk:
            break
        *lines, incomplete = (incomplete + chunk).split(b"\n")
        yield from in_groups([line + b"\n" for line in lines], limit)
    if incomplete:
        yield [incomplete]


def answer(
    model: Model,
    groups: Iterable[Sequence[str]],
    *,
    output: "AnswersFile | None" = None,
    as_json: bool = False,
    advance: Advance = ignore,
) -> None:
    """Answer groups of lines, and warn about empty, equal and looping answers.

    Args:
        output: file for the answers, whose answered lines are skipped; None: stdout.
        as_json: print a JSON object for each line: ``line``, its number, and the task's answer.
        advance: called with the number of lines that are done.

    Raises:
        OutputError: the answers cannot be written, or `output` has more answers than the input has lines.
    """
    answered = 0 if output is None else output.answered
    degenerate = Degenerate()
    advance(answered)
    for lines in groups if output is None else output.unanswered(groups):
        answers = model.answer(lines, first=answered + 1, advance=advance)
        degenerate.add(lines, [_best_text(text, document) for text, document in answers])
        content = "".join(f"{text}\n" for text, _ in answers)
        if output is not None:
            output.add(content, answered + len(lines))
        if as_json:
            numbered = enumerate((document for _, document in answers), start=answered + 1)
            emit("".join(json_text({"line": number, **document}) + "\n" for number, document in numbered))
        elif output is None:
            emit(content)
        answered += len(lines)
    if output is not None:
        output.finish()
    for remark in degenerate.remarks():
        warn(remark)


def _best_text(text: str, document: dict[str, Any]) -> str:
    return str(document["translations"][0]["text"]) if "translations" in document else text


def refuse_same_file(source: Path | None, output: Path) -> None:
    """Raise OutputError if the output is the input; None is stdin."""
    with suppress(OSError, ValueError, AttributeError):  # a file is missing, or stdin is closed or replaced
        status = os.fstat(sys.stdin.fileno()) if source is None else source.stat()
        if os.path.samestat(status, output.stat()):
            raise OutputError(f"{output} is the text that is read; name another file for the answers")


@dataclass
class AnswersFile:
    """A file of answers, open and locked; :func:`open_answers` opens it."""

    path: Path
    answered: int  # lines of the input
    _handle: BinaryIO
    _kept_bytes: int | None  # the file is cut to this size before the first answer is written; None: it was cut

    def unanswered(self, groups: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        """Yield the groups of the input's lines without those that are answered.

        Raises OutputError if the file answers more lines than the input has.
        """
        answered = self.answered
        position = 0
        for group in groups:
            lines = group[max(answered - position, 0) :]
            position += len(group)
            if lines:
                yield lines
        if position < answered:
            raise OutputError(
                f"{self.path} answers {answered:,} lines, and the input has {position:,}: "
                "give the same input, or leave --resume out to write the file again"
            )

    def add(self, content: str, answered: int) -> None:
        """Append answers, after which `answered` lines of the input are answered. Raises OutputError."""
        self._cut()
        with writing(self.path):
            self._handle.write(content.encode())
            self._handle.flush()
        self.answered = answered

    def finish(self) -> None:
        """Flush the file to the disk. Raises OutputError."""
        self._cut()
        with writing(self.path):
            os.fsync(self._handle.fileno())

    def _cut(self) -> None:
        if self._kept_bytes is not None:
            with writing(self.path):
                self._handle.truncate(self._kept_bytes)
                self._handle.seek(self._kept_bytes)
            self._kept_bytes = None


@contextmanager
def open_answers(path: Path, *, resume: bool = False, numbered: bool = False) -> Iterator[AnswersFile]:
    """Open a file for answers; an older file keeps its content until the first answer is written.

    Args:
        resume: keep the complete answers in the file.
        numbered: an input line has several answers, each of which starts with the line's number and a tab.

    Raises:
        OutputError: the file cannot be written, is no regular file, or another process writes it.
    """
    with writing(path):  # also if the name is too long
        is_file = path.is_file() or not path.exists()
    if not is_file:
        raise OutputError(f"{path} is not a regular file; name a file, or leave --output out and redirect stdout")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise OutputError(f"another process writes {path}; wait for it, or name another file") from None
        except OSError:
            pass  # this file system has no locks
        answered, size = _complete_answers(handle, path, numbered) if resume else (0, 0)
        output = AnswersFile(path, answered, handle, size)
        try:
            yield output
        except BaseException:
            if output.answered > answered:
                note(f"{path} has the answers to {output.answered:,} lines; add --resume to continue")
            elif not path.stat().st_size:
                path.unlink()
            raise
    finally:
        with suppress(OSError):  # writing() has reported a full disk
            handle.close()


def _complete_answers(handle: BinaryIO, path: Path, numbered: bool) -> tuple[int, int]:
    """Return the number of answered input lines and the size of their answers in bytes.

    Of numbered answers, the last line's are left out: some of them may be missing.
    """
    answered = size = position = 0
    for line in handle:
        if not line.endswith(b"\n"):
            break
        if numbered:
            number = line.partition(b"\t")[0]
            if not number.isdigit():
                raise OutputError(f"{path} has no numbers of lines, so --n-best cannot resume it; leave --resume out")
            if int(number) != answered + 1:
                answered, size = int(number) - 1, position
        position += len(line)
        if not numbered:
            answered, size = answered + 1, position
    return answered, size
