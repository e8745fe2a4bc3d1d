"""``decode``: lines as they come, what a model answers to them, and a file of answers that another process continues.

A person who types is answered at once, and what flows through a pipe is sorted and batched.

While a file of answers grows, ``<name>.resume.jsonl`` lies beside it: first what the answers come from, then, after
each group of answers, how many lines of the input they belong to, with their SHA-256, and how long the file is by then.
So what was written half is known, and so is another input. The last group takes it away: a file without it is complete.
"""

import fcntl
import hashlib
import json
import os
import select
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from io import BufferedReader
from itertools import count, islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, NamedTuple, Self, TypeVar, cast

from phmctl.console import emit, json_text, note, warn
from phmctl.data.readers import LONGEST_LINE, decode_line, open_bytes, raw_lines, reading
from phmctl.decoding.model import Advance, Model, ignore
from phmctl.errors import DataError, OutputError
from phmctl.files import sync, write_atomic, writing
from phmctl.metrics.text import Degenerate

T = TypeVar("T")

FORMAT = 2  # of the record beside a file of answers
_CHUNK = 1 << 16  # a pipe holds so many bytes


def arriving_lines(path: Path | None, *, pause: float = 0.05, limit: int = 1024) -> Iterator[list[str]]:
    """Yield the lines of a file, or of stdin, in groups as they arrive; none is empty.

    The groups of a regular file have `limit` lines; those of a pipe or a terminal, which is UTF-8, are what is there,
    looked at each `pause` seconds. DataError: the file cannot be read, or a line is not UTF-8 (named by file and line).
    """
    if path is None and sys.stdin is None:
        raise DataError("stdin is closed; name the text with --input FILE")
    name, numbers = path or Path("stdin"), count(1)
    with reading(name), open_bytes(path) if path else nullcontext(sys.stdin.buffer) as handle:
        for group in _groups(handle, pause, limit):
            lines: list[str] = []
            try:
                lines.extend(decode_line(raw, name, next(numbers)) for raw in group)
            except DataError:
                if lines:  # what stands before a line that is no UTF-8 is answered before that is said
                    yield lines
                raise
            yield lines


def in_groups(lines: Iterable[T], limit: int = 1024) -> Iterator[list[T]]:
    rest = iter(lines)
    while group := list(islice(rest, limit)):
        yield group


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


def answer(
    model: Model,
    groups: Iterable[Sequence[str]],
    *,
    output: "AnswersFile | None" = None,
    as_json: bool = False,
    advance: Advance = ignore,
) -> None:
    """Answer groups of lines as they come: into a file, on stdout, or both. What is wrong with all of them is said.

    What `output` has already answered is passed over; without it the answers go to stdout. `as_json` prints a JSON
    object a line of input: ``line``, its number, and what the task answers. `advance` is told how many lines are done.
    OutputError: the file or stdout cannot be written, or the file answers other lines.
    """
    number = 1 + (output.lines if output else 0)
    counted = Degenerate()
    advance(number - 1)
    for group in groups if output is None else output.unanswered(groups):
        found = model.answer(group, first=number, advance=advance)
        text = "".join(f"{line}\n" for line, _ in found)
        counted.add(group, [one["translations"][0]["text"] if "translations" in one else line for line, one in found])
        if output is not None:
            output.add(group, text)
        if as_json:
            objects = ({"line": place, **each} for place, (_, each) in enumerate(found, start=number))
            emit("".join(f"{json_text(each)}\n" for each in objects))
        elif output is None:
            emit(text)
        number += len(group)
    if output is not None:
        output.finish()
    for remark in counted.remarks():
        warn(remark)


def refuse_same_file(source: Path | None, output: Path) -> None:
    """Refuse (OutputError) to write over the text that is read; None is stdin."""
    with suppress(OSError, ValueError, AttributeError):  # no such file, or a stdin that is none
        read = os.fstat(sys.stdin.fileno()) if source is None else source.stat()
        if os.path.samestat(read, output.stat()):
            raise OutputError(f"{output} is the text that is read; name another file for the answers")


class _Mark(NamedTuple):
    """A place in the file behind whole answers."""

    lines: int = 0  # of the input, answered so far
    input_sha256: str = ""  # of these lines
    bytes: int = 0  # of the file


class AnswersFile:
    """Where answers are written; use it as a context, and call :meth:`finish` when the input has ended.

    Args:
        path: the file.
        origin: what the answers come from: run, weights, settings, as JSON values.
        resume: go on with a file that another process has begun; where there is none, begin it.

    Raises:
        OutputError: the file cannot be written, another process writes it, or it cannot be resumed: it is shorter than
            it was, or comes from something else; or it can, and `resume` is not set.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any], *, resume: bool = False) -> None:
        if path.exists() and not path.is_file():
            raise OutputError(f"{path} is no plain file; name one, or leave --output out and redirect stdout")
        self.path, self.record = path, path.with_name(f"{path.name}.resume.jsonl")
        self._origin = {"format": FORMAT, **origin}
        self._input, self._mark = hashlib.sha256(), _Mark()
        self._begun = self._complete = False  # whether this process has written; whether there is nothing to do
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # What another process has written into it meanwhile stays.
            self._handle = open(path, "r+b", opener=lambda path, flags: os.open(path, flags | os.O_CREAT, 0o666))  # noqa: SIM115
        try:
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise OutputError(f"another process writes {path}; wait for it, or name another file") from None
            if self.record.exists():
                self._take_up(resume)
            elif resume and path.stat().st_size:
                self._complete = True
        except BaseException:
            self._handle.close()
            raise

    @property
    def lines(self) -> int:
        """How many lines of the input are answered."""
        return self._mark.lines

    def _take_up(self, resume: bool) -> None:
        """Go on behind the last mark that the file reaches."""
        anew = f"remove {self.record} to begin anew"
        try:
            header, *rest = map(json.loads, self.record.read_text(encoding="utf-8").split("\n")[:-1] or ["{}"])
            marks = [_Mark(**each) for each in rest]
            typed = all([*map(type, mark)] == [int, str, int] and min(mark.lines, mark.bytes) >= 0 for mark in marks)
            if not typed or any(len(each) < 3 for each in rest):
                raise ValueError("it holds no marks")
            differing = {key: (header.get(key), self._origin.get(key)) for key in {**header, **self._origin}}
        except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
            raise OutputError(f"{self.record} cannot be read ({error}); {anew}") from error
        if not marks:
            return
        if not resume:
            raise OutputError(
                f"{self.path} has the answers to {marks[-1].lines:,} lines of a decode that was stopped; "
                f"add --resume to go on, or {anew}"
            )
        told = [f"{key} ({there} there, {now} now)" for key, (there, now) in differing.items() if there != now]
        if told:
            raise OutputError(f"{self.path} was not made like this: {', '.join(told)}; give it what it was, or {anew}")
        size = self.path.stat().st_size
        self._mark = next((mark for mark in reversed(marks) if mark.bytes <= size), _Mark())
        if not self.lines:
            raise OutputError(f"{self.path} is shorter than it was when it was written; {anew}")

    def unanswered(self, groups: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        """Yield the groups of the input's lines that are not answered yet."""
        if self._complete:
            self._check_count(sum(map(len, groups)))
            return
        left = self._mark.lines
        for group in groups:
            answered, rest = group[:left], group[left:]
            left -= len(answered)
            self._take_in(answered)
            if answered and not left and self._input.hexdigest() != self._mark.input_sha256:
                left = self._mark.lines
                break
            if rest:
                yield rest
        if left:
            raise OutputError(
                f"{self.path} answers {self._mark.lines:,} lines, and they are not those that the input begins with; "
                f"give the same input, or remove {self.record} to begin anew"
            )

    def _check_count(self, asked: int) -> None:
        """Refuse (OutputError) a complete file of another input, as far as its lines tell: its record is gone."""
        with self.path.open("rb") as file:
            lines = sum(chunk.count(b"\n") for chunk in iter(lambda: file.read(1 << 20), b""))
        if lines != asked and ((self._origin.get("n_best") or 1) == 1 or lines < asked):
            raise OutputError(
                f"{self.path} is complete and has {lines:,} lines, and the input {asked:,}: it answers another input; "
                "leave --resume out to write it anew"
            )
        note(f"{self.path} is complete already; leave --resume out to write it anew")

    def _take_in(self, lines: Sequence[str]) -> None:
        self._input.update("".join(f"{line}\n" for line in lines).encode())

    def add(self, lines: Sequence[str], answers: str) -> None:
        """Append the answers to some lines of the input, each closed by a line break. Raises OutputError."""
        payload = answers.encode()
        with writing(self.path):
            self._begin()
            self._handle.write(payload)
            self._handle.flush()
        self._take_in(lines)
        done, size = self._mark.lines + len(lines), self._mark.bytes + len(payload)
        self._mark = _Mark(done, self._input.hexdigest(), size)
        with writing(self.record), self.record.open("a", encoding="utf-8") as handle:
            handle.write(f"{json.dumps(self._mark._asdict())}\n")

    def _begin(self) -> None:
        """Before the first answer: drop what was written half, or what an older file holds; and write the record."""
        if self._begun:
            return
        self._begun = True
        kept = [self._origin, self._mark._asdict()][: 1 + bool(self._mark.lines)]  # without half a mark
        write_atomic(self.record, "".join(f"{json.dumps(each)}\n" for each in kept))
        self._handle.truncate(self._mark.bytes)
        self._handle.seek(self._mark.bytes)

    def finish(self) -> None:
        """Say that all is answered: the file is flushed to the disk, and its record removed."""
        if self._complete:
            return
        with writing(self.path):
            self._begin()
            os.fsync(self._handle.fileno())
            self.record.unlink(missing_ok=True)
            sync(self.path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):  # of a full disk, which add() has told
            self._handle.close()
        if kind is not None and self._mark.lines:
            note(f"{self.path} has the answers to {self._mark.lines:,} lines; go on with --resume")
        elif kind is not None and not self.path.stat().st_size:  # nothing was there, and nothing has come
            self.path.unlink()
