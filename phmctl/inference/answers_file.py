"""A file of answers that grows as they come, so that a process that is killed keeps what it has, and another goes on.

While it grows, ``<name>.resume.jsonl`` lies beside it: first what the answers come from, then, after each group of
answers, how many lines of the input they belong to and how long the file is by then, with the SHA-256 of both. So what
was written half is known, and so are another input and a file that was changed. The last group takes it away.
"""

import hashlib
import json
import os
import stat
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import IO, Any, NamedTuple, Self

from phmctl.console import note
from phmctl.errors import OutputError, UserError
from phmctl.files import sync_folder, take_lock, writing

FORMAT = 1
_SYNC = 1.0  # seconds between two flushes to the disk, at least
_CHUNK = 1 << 20


class _Mark(NamedTuple):
    """A place in the file behind whole answers."""

    lines: int = 0  # of the input, answered so far
    bytes: int = 0  # of the file
    input_sha256: str = ""
    output_sha256: str = ""


class AnswersFile:
    """Where answers are written; use it as a context, and call :meth:`finish` when the input has ended.

    Args:
        path: the file. What is no plain file (a pipe, ``/dev/stdout``) is written to, and cannot be resumed.
        origin: what the answers come from: run, weights, settings, as JSON values.
        resume: go on with a file that another process has begun; where there is none, begin it.

    Raises:
        OutputError: the file cannot be written, another process writes it, or it cannot be resumed: it was changed
            since, or comes from something else; or it can, and `resume` is not set.
    """

    def __init__(self, path: Path, origin: Mapping[str, Any], *, resume: bool = False) -> None:
        if path.is_dir():
            raise OutputError(f"{path} is a folder; name a file: {path / 'answers.txt'}")
        self.path = path
        self.record = path.with_name(f"{path.name}.resume.jsonl")
        self._origin = {"format": FORMAT, **origin}
        self._begun = False  # whether this process has written
        self._synced = time.monotonic()
        self._input, self._output = hashlib.sha256(), hashlib.sha256()
        self._mark = _Mark()
        self._whole: int | None = None  # lines of a file to resume that has no record: it should be complete
        self._made = not path.exists()
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = "r+b" if self._made or path.is_file() else "wb"
            self._handle: IO[bytes] = open(path, mode, buffering=0, opener=_open_or_make)  # noqa: SIM115
        try:
            self._plain = stat.S_ISREG(os.fstat(self._handle.fileno()).st_mode)
            self._prepare(resume)
        except BaseException:
            self._handle.close()
            if self._made:
                path.unlink(missing_ok=True)
            raise

    @property
    def lines(self) -> int:
        """How many lines of the input are answered."""
        return self._mark.lines

    def _prepare(self, resume: bool) -> None:
        if not self._plain:
            if resume:
                raise UserError(f"--resume: {self.path} is no plain file; leave --resume out")
            return
        if take_lock(self._handle.fileno()) is False:
            self._made = False  # another process may have made it in between, and writes it
            raise OutputError(f"another process writes {self.path}; wait for it, or name another file")
        if self.record.exists():
            self._take_up(resume)
        elif resume and self.path.stat().st_size:
            self._whole = sum(chunk.count(b"\n") for chunk in iter(partial(self._handle.read, _CHUNK), b""))

    def _take_up(self, resume: bool) -> None:
        """Go on behind the last mark that the file agrees with."""
        header, *marks = _read_record(self.record)
        anew = f"remove {self.record} to begin anew"
        if not marks:
            return
        if not resume:
            raise OutputError(
                f"{self.path} has the answers to {marks[-1]['lines']:,} lines of a decode that was stopped; "
                f"add --resume to go on, or {anew}"
            )
        differing = [key for key in {**header, **self._origin} if header.get(key) != self._origin.get(key)]
        if differing:
            told = ", ".join(f"{key} ({header.get(key)} there, {self._origin.get(key)} now)" for key in differing)
            raise OutputError(f"{self.path} was not made like this: {told}; give it what it was made with, or {anew}")
        for mark in (_Mark(**each) for each in marks):
            digest = self._output.copy()
            if not self._digest(digest, self._mark.bytes, mark.bytes) or digest.hexdigest() != mark.output_sha256:
                break
            self._mark, self._output = mark, digest
        if not self.lines:
            raise OutputError(f"{self.path} {'is gone' if self._made else 'was changed since it was written'}; {anew}")

    def _digest(self, digest: Any, start: int, stop: int) -> bool:
        """Digest a stretch of the file; return whether it is there."""
        self._handle.seek(start)
        left = stop - start
        while left and (chunk := self._handle.read(min(left, _CHUNK))):
            digest.update(chunk)
            left -= len(chunk)
        return not left

    def unanswered(self, groups: Iterable[Sequence[str]]) -> Iterator[Sequence[str]]:
        """Yield the groups of the input's lines that are not answered yet."""
        if self._whole is not None:
            lines = sum(map(len, groups))
            if lines != self._whole:
                raise OutputError(
                    f"{self.path} cannot be resumed: it has {self._whole:,} lines, the input {lines:,}, and "
                    f"{self.record.name} is not beside it; leave --resume out to write it anew"
                )
            note(f"{self.path} has the answers to all {lines:,} lines already")
            return
        left = self._mark.lines
        for group in groups:
            answered, rest = group[:left], group[left:]
            left -= len(answered)
            self._take_in(answered)
            if answered and not left and self._input.hexdigest() != self._mark.input_sha256:
                raise self._other_input("they are not those that the input begins with")
            if rest:
                yield rest
        if left:
            raise self._other_input(f"the input has {self._mark.lines - left:,}")

    def _other_input(self, why: str) -> OutputError:
        return OutputError(
            f"{self.path} answers {self._mark.lines:,} lines, but {why}; give the same input, "
            f"or remove {self.record} to begin anew"
        )

    def _take_in(self, lines: Sequence[str]) -> None:
        self._input.update("".join(f"{line}\n" for line in lines).encode())

    def add(self, lines: Sequence[str], answers: str) -> None:
        """Append the answers to some lines of the input, each closed by a line break. Raises OutputError."""
        payload = answers.encode()
        with writing(self.path):
            self._begin()
            view = memoryview(payload)
            while view:
                view = view[self._handle.write(view) :]
            if self._plain and time.monotonic() - self._synced > _SYNC:
                os.fsync(self._handle.fileno())
                self._synced = time.monotonic()
        if not self._plain:
            return
        self._take_in(lines)
        self._output.update(payload)
        done, size = self._mark.lines + len(lines), self._mark.bytes + len(payload)
        self._mark = _Mark(done, size, self._input.hexdigest(), self._output.hexdigest())
        with writing(self.record), self.record.open("a", encoding="utf-8") as handle:
            handle.write(f"{json.dumps(self._mark._asdict())}\n")

    def _begin(self) -> None:
        """Before the first answer: drop what was written half, or what an older file holds; and write the record."""
        if self._begun or not self._plain:
            return
        self._begun = True
        if not self._mark.lines:
            self.record.write_text(f"{json.dumps(self._origin)}\n", encoding="utf-8")
        self._handle.truncate(self._mark.bytes)
        self._handle.seek(self._mark.bytes)

    def finish(self) -> None:
        """Say that all is answered: the file is flushed to the disk, and its record removed."""
        if not self._plain or self._whole is not None:
            return
        with writing(self.path):
            self._begin()
            os.fsync(self._handle.fileno())
            self.record.unlink(missing_ok=True)
            sync_folder(self.path.parent)
        self._made = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()
        if kind is None or not self._plain:
            return
        if self._mark.lines:
            note(f"{self.path} has the answers to {self._mark.lines:,} lines; go on with --resume")
        elif self._made:
            self.path.unlink(missing_ok=True)


def _open_or_make(path: str, flags: int) -> int:
    """Open a file, made if it is not there. What another process has written into it meanwhile stays."""
    return os.open(path, flags | os.O_CREAT, 0o666)


def _read_record(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a record; of the last line only what is whole."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        found = [json.loads(line) for line in lines]
    except (OSError, ValueError) as error:
        raise OutputError(f"{path} cannot be read ({error}); remove it to begin anew") from error
    fields = set(_Mark._fields)
    if not all(isinstance(each, dict) for each in found) or any(set(mark) != fields for mark in found[1:]):
        raise OutputError(f"{path} is damaged; remove it to begin anew")
    return found or [{}]
