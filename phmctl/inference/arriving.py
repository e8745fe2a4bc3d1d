"""Lines as they arrive: a person who types is answered at once, and what flows through a pipe is sorted and batched."""

import os
import select
import stat
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import BufferedReader
from itertools import count, islice
from pathlib import Path
from typing import BinaryIO, TypeVar, cast

from phmctl.data.readers import LONGEST_LINE, decode_line, open_bytes, raw_lines, reading
from phmctl.errors import DataError

T = TypeVar("T")

PAUSE = 0.05  # seconds
LIMIT = 1024  # lines that are sorted and batched together
_CHUNK = 1 << 16  # a pipe holds so many bytes


def arriving_lines(path: Path | None, *, pause: float = PAUSE, limit: int = LIMIT) -> Iterator[list[str]]:
    """Yield the lines of a file, or of stdin, in groups as they arrive; none is empty.

    The groups of a regular file have `limit` lines; those of a pipe or a terminal, which is UTF-8, are what is there,
    looked at each `pause` seconds. DataError: the file cannot be read, or a line is not UTF-8 (named by file and line).
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
    numbers = count(1)
    for group in groups:
        lines: list[str] = []
        try:
            lines.extend(decode_line(raw, name, next(numbers)) for raw in group)
        except DataError:
            if lines:  # what stands before a line that is no UTF-8 is answered before that is said
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

    What comes while a group is answered waits in the pipe, and is read together: up to `limit` lines, or the bytes of
    the longest line. A line that is too long is the last: no more is read.
    """
    ended, rest, size = list[bytes](), b"", 0  # lines, what of the next is there, and the bytes of both
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    for chunk in iter(partial(os.read, descriptor, _CHUNK), b""):
        looked = time.monotonic()
        *more, rest = (rest + chunk).split(b"\n")
        ended += [line + b"\n" for line in more]
        size += len(chunk)
        if len(ended) < limit and size <= LONGEST_LINE and ready.poll(0):
            continue
        yield from in_groups(ended, limit)
        ended, size = [], len(rest)
        if len(rest) > LONGEST_LINE:
            break
        time.sleep(max(0.0, looked + pause - time.monotonic()))
    yield from in_groups(ended, limit)
    if rest:
        yield [rest]
