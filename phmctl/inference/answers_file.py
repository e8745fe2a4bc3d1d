"""A file of answers that grows as they come, so that a process that is killed keeps what it has, and another goes on.

While it grows, ``<name>.resume.jsonl`` lies beside it: first what the answers come from, then, after each group of
answers, how many lines of the input they belong to, with their SHA-256, and how long the file is by then. So what was
written half is known, and so is another input. The last group takes it away: a file without it is complete.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from phmctl.console import note
from phmctl.errors import OutputError
from phmctl.files import sync_folder, take_lock, writing

FORMAT = 2


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
            if take_lock(self._handle.fileno()) is False:
                raise OutputError(f"another process writes {path}; wait for it, or name another file")
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
            if any([*map(type, mark)] != [int, str, int] for mark in marks) or any(len(each) < 3 for each in rest):
                raise ValueError("it holds no marks")
            differing = {key: (header.get(key), self._origin.get(key)) for key in {**header, **self._origin}}
        except (OSError, ValueError, TypeError, AttributeError) as error:
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
        if lines != asked and (self._origin.get("n_best", 1) == 1 or lines < asked):
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
        if not self._mark.lines:
            self.record.write_text(f"{json.dumps(self._origin)}\n", encoding="utf-8")
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
            sync_folder(self.path.parent)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()
        if kind is not None and self._mark.lines:
            note(f"{self.path} has the answers to {self._mark.lines:,} lines; go on with --resume")
        elif kind is not None and not self.path.stat().st_size:  # nothing was there, and nothing has come
            self.path.unlink()
