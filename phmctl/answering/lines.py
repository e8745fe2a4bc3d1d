"""Read lines in groups, answer them, and write the answers: ``phmctl decode``.

A terminal and a program that waits for each answer are answered at once. Lines that have already arrived are answered
together, so that the model sorts and batches them.
"""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from io import BufferedReader, FileIO
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, TypeVar, cast

from phmctl.answering.base import Advance, ignore
from phmctl.console import emit, json_text
from phmctl.data.readers import decode_line, open_bytes, opener, reading
from phmctl.errors import DataError, OutputError
from phmctl.storage import writing

if TYPE_CHECKING:
    from phmctl.answering.classifier import Classifier
    from phmctl.answering.translator import Translator

T = TypeVar("T")

_PIPE_BYTES = 1 << 16  # capacity of a pipe on Linux


def arriving_lines(path: Path | None, *, limit: int = 1024) -> Iterator[list[str]]:
    """Yield the lines of a file, or of stdin, in groups of 1 to `limit` lines.

    A group of a pipe or a terminal holds the lines that have arrived. Both must be UTF-8.

    Raises DataError if the file cannot be read or a line is not UTF-8.
    """
    if path is None and sys.stdin is None:
        raise DataError("stdin is closed. Name the text with --input FILE")
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
    return in_groups(handle, limit)


def _raw_groups_of_pipe(handle: BufferedReader, limit: int) -> Iterator[list[bytes]]:
    """Yield the complete lines that have arrived. Wait only if no line is complete."""
    incomplete = b""
    while chunk := handle.read1(_PIPE_BYTES):
        *lines, incomplete = (incomplete + chunk).split(b"\n")
        yield from in_groups([line + b"\n" for line in lines], limit)
    if incomplete:
        yield [incomplete]


def answer(
    model: "Translator | Classifier",
    groups: Iterable[Sequence[str]],
    *,
    output: Callable[[str], None] | None = None,
    as_json: bool = False,
    advance: Advance = ignore,
) -> None:
    """Answer groups of lines.

    Args:
        output: writes answers to a file. None: they are printed on stdout.
        as_json: print a JSON object for each line: ``line``, the number, and the task's answer.
        advance: called with the number of lines that are done.

    Raises:
        OutputError: the answers cannot be written.
    """
    answered = 0
    for lines in groups:
        answers = model.answer(lines, first=answered + 1, advance=advance)
        content = "".join(f"{text}\n" for text, _ in answers)
        if output is not None:
            output(content)
        if as_json:
            numbered = enumerate((document for _, document in answers), start=answered + 1)
            emit("".join(json_text({"line": number, **document}) + "\n" for number, document in numbered))
        elif output is None:
            emit(content)
        answered += len(lines)


def refuse_same_file(source: Path | None, output: Path) -> None:
    """Raise OutputError if the output is the input. None is stdin."""
    with suppress(OSError, ValueError, AttributeError):  # a file is missing, or stdin is closed or replaced
        status = os.fstat(sys.stdin.fileno()) if source is None else source.stat()
        if os.path.samestat(status, output.stat()):
            raise OutputError(f"{output} is the text that is read. Name another file for the answers")


@contextmanager
def open_answers(path: Path) -> Iterator[Callable[[str], None]]:
    """Yield a function that appends answers to a file. Raises OutputError if the file cannot be written.

    A name that ends in ``.gz`` makes a compressed file. An older file's content stays until the first answer, or until
    the end if there is no answer.
    """
    with writing(path):
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is not a regular file. Name a file, or leave --output out and redirect stdout")
        path.parent.mkdir(parents=True, exist_ok=True)
    file: BinaryIO | None = None

    def write(content: str) -> None:
        nonlocal file
        with writing(path):
            file = file or opener(path)(path, "wb")
            file.write(content.encode())
            file.flush()

    try:
        yield write
        write("")
    finally:
        if file is not None:
            with writing(path), file:
                os.fsync(file.fileno())
