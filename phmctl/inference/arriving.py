"""Lines as they arrive: what has come is handed on when nothing more comes for a moment, and in large groups while
lines flow. A person who types is answered at once so, and a pipe is sorted and batched.
"""

import os
import select
import stat
import sys
import time
from codecs import iterdecode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import BufferedReader
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from phmctl.data.readers import LONGEST_LINE, decode_line, marked_encoding, open_bytes, raw_lines, reading
from phmctl.errors import DataError

T = TypeVar("T")

PAUSE = 0.05  # seconds
LIMIT = 1024  # lines that are sorted and batched together
_CHUNK = 1 << 16  # a pipe holds so many bytes


def arriving_lines(path: Path | None, *, pause: float = PAUSE, limit: int = LIMIT) -> Iterator[list[str]]:
    """Yield the lines of a file, or of stdin, in groups as they arrive; none is empty.

    The groups of a regular file have `limit` lines; those of a pipe or a terminal end `pause` seconds after their first
    line. The lines before one that is no UTF-8 are yielded before the error is raised.

    Raises:
        DataError: the file cannot be read, or a line is not UTF-8 (named by file and line).
    """
    if path is not None:
        with reading(path), open_bytes(path) as handle:
            yield from _decoded(_groups(handle, pause, limit), path)
    elif sys.stdin is None:
        raise DataError("stdin is closed; name the text with --input FILE")
    else:
        with reading(Path("stdin")):
            yield from _decoded(_groups(sys.stdin.buffer, pause, limit), "stdin")


def in_groups(lines: Iterable[T], limit: int = LIMIT) -> Iterator[list[T]]:
    """Yield lines that are all there in groups of `limit`."""
    rest = iter(lines)
    while group := list(islice(rest, limit)):
        yield group


def _decoded(groups: Iterable[list[bytes]], name: Path | str) -> Iterator[list[str]]:
    number = 0
    for group in groups:
        lines: list[str] = []
        for raw in group:
            number += 1
            try:
                lines.append(decode_line(raw, name, number))
            except DataError:
                if lines:
                    yield lines
                raise
        yield lines


def _groups(handle: BinaryIO, pause: float, limit: int) -> Iterator[list[bytes]]:
    descriptor = None  # of a pipe, a socket or a terminal; all else has all its lines already
    with suppress(OSError):
        if hasattr(handle, "raw"):  # decompressed, or in memory: its descriptor, if any, is not its text
            descriptor = None if stat.S_ISREG(os.fstat(handle.fileno()).st_mode) else handle.fileno()
    if descriptor is not None:
        return _arriving(descriptor, pause, limit)
    buffered = cast("BufferedReader", handle if hasattr(handle, "peek") else BufferedReader(handle))
    return in_groups(raw_lines(buffered), limit)


def _arriving(descriptor: int, pause: float, limit: int) -> Iterator[list[bytes]]:
    """Yield raw lines in groups. Past Python's buffer, which would wait until it is full.

    A line that is too long is the last: no more is read.
    """
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    lines: list[bytes] = []
    rest = b""  # of the line that has not ended
    deadline = 0.0
    for chunk in _chunks(descriptor):
        *ended, rest = (rest + chunk).split(b"\n")
        if ended and not lines:
            deadline = time.monotonic() + pause
        lines += [line + b"\n" for line in ended]
        while len(lines) >= limit:
            yield lines[:limit]
            lines = lines[limit:]
        if len(rest) > LONGEST_LINE:
            break
        if lines and not poll.poll(max(0.0, 1000 * (deadline - time.monotonic()))):
            yield lines
            lines = []
    if lines or rest:
        yield [*lines, *([rest] if rest else [])]


def _chunks(descriptor: int) -> Iterator[bytes]:
    """Yield what is read, in UTF-8 whatever a byte order mark says it is in."""
    raw = iter(partial(os.read, descriptor, _CHUNK), b"")
    first = next(raw, b"")
    encoding = marked_encoding(first)
    whole = chain([first], raw)
    yield from whole if encoding is None else (text.encode("utf-8") for text in iterdecode(whole, encoding))
