"""Writing ``metrics.jsonl``: a JSON object a line, appended as the training goes; and TensorBoard beside it, if asked.

With each checkpoint the log is sealed: the number of lines stands in the checkpoint's state, their bytes and SHA-256 in
``metrics.seal.json``. A resumed training continues after exactly these lines, and says if they are not what was
written.
"""

import hashlib
import json
import os
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from phmctl.checkpoints import AVERAGE
from phmctl.console import warn
from phmctl.errors import RecipeError
from phmctl.files import write_atomic, write_json, writing
from phmctl.runs.metrics import read_entry, read_lines, warn_of_foreign

SEAL = "metrics.seal.json"


class MetricsLog:
    """Appends entries; a context. On entering it, what lies beyond the checkpoint is dropped, so no step stands twice.

    Args:
        path: the ``metrics.jsonl``; nothing is written to it before the context is entered.
        after_step: keep entries up to this step.
        tensorboard: a folder for TensorBoard's own log, or None.
        logged: what :meth:`seal` gave for the checkpoint: keep these lines; None where it is not known.

    Raises:
        RecipeError: TensorBoard is asked for but not installed.
        RunError: the file cannot be read.
    """

    def __init__(
        self, path: Path, after_step: int = 0, tensorboard: Path | None = None, logged: int | None = None
    ) -> None:
        self._path = path
        self._open_board = partial(summary_writer(), tensorboard, purge_step=after_step + 1) if tensorboard else None
        self._seals = _read_seals(path.with_name(SEAL))
        lines, end = read_lines(path)
        kept = _sealed(path, lines, logged, self._seals, after_step) if logged is not None else None
        if kept is None:
            warn_of_foreign(path, [read_entry(line) for line in lines])
            kept = [line for line in (*lines, end) if (entry := read_entry(line)) and entry["step"] <= after_step]
        self._begin(kept)

    def _begin(self, kept: list[bytes]) -> None:
        entries = [entry for line in kept if (entry := read_entry(line))]
        self._kept = b"".join(line + b"\n" for line in kept)
        self._lines, self._size = len(kept), len(self._kept)
        self._digest = hashlib.sha256(self._kept)
        self._events = {(entry.get("event"), entry["step"]) for entry in entries}
        # trained before this process; not every event has the time
        self.seconds = max((float(entry.get("seconds", 0.0)) for entry in entries), default=0.0)

    def __enter__(self) -> Self:
        """Begin; raises :class:`OutputError` when the file cannot be written."""
        if not self._path.is_file() or self._path.read_bytes() != self._kept:
            write_atomic(self._path, self._kept)
        with writing(self._path):
            self._handle = self._path.open("ab", buffering=0)  # a line is on its way to the disk when add() returns
        self._board = self._open_board() if self._open_board else None
        return self

    def add(self, event: str, step: int, values: dict[str, Any]) -> None:
        """Append one entry, a whole line or nothing.

        Raises:
            OutputError: the disk is full.
        """
        line = (json.dumps({"event": event, "step": step, **values}) + "\n").encode()
        with writing(self._path):
            self._append(line)
        self._lines, self._size = self._lines + 1, self._size + len(line)
        self._digest.update(line)
        self._events.add((event, step))
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{event}/{name}", value, step)

    def _append(self, line: bytes) -> None:
        written = 0
        try:
            while written < len(line):
                written += self._handle.write(line[written:])
        except OSError:
            with suppress(OSError):  # what is left is a torn line, which costs itself and nothing else
                self._handle.truncate(self._size)
            raise

    def has(self, event: str, step: int) -> bool:
        """Return whether there is such an entry."""
        return (event, step) in self._events

    def seal(self, step: int) -> int:
        """Note what the log is now, when a checkpoint of `step` is about to be written; return its number of lines.

        Raises:
            OutputError: the disk is full.
        """
        seal = {"step": step, "bytes": self._size, "sha256": self._digest.hexdigest()}
        if self._seals.get(str(self._lines)) != seal:
            with writing(self._path):
                os.fsync(self._handle.fileno())
            older = {lines: other for lines, other in self._seals.items() if int(lines) < self._lines}
            self._seals = older | {str(self._lines): seal}
            write_json(self._path.with_name(SEAL), self._seals)
        return self._lines

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()
        if self._board is not None:
            self._board.close()


# --------------------------------------------------------------------------------------------------------- seals


def _read_seals(path: Path) -> dict[str, dict[str, Any]]:
    """Return the seals by number of lines; none where the file is missing or damaged."""
    try:
        seals = json.loads(path.read_bytes())
        return {str(int(lines)): dict(seal) for lines, seal in seals.items()}
    except (OSError, ValueError, RecursionError, AttributeError, TypeError):
        return {}


def _sealed(
    path: Path, lines: list[bytes], logged: int, seals: dict[str, dict[str, Any]], after_step: int
) -> list[bytes] | None:
    """Return the lines that a checkpoint's state counts, and averages that were measured after it.

    None if they are not those that were sealed; a warning then says what is gone.
    """
    if logged and str(logged) not in seals:
        warn(f"{path.with_name(SEAL)} is missing or damaged: whether {path.name} is as it was written is not known")
        return None
    if logged and not _is_intact(lines, logged, seals[str(logged)]):
        warn(_what_is_gone(path, lines, logged, seals))
        return None
    further = [line for line in lines[logged:] if _is_average(line, after_step)]
    return lines[:logged] + further


def _is_intact(lines: list[bytes], count: int, seal: dict[str, Any]) -> bool:
    content = b"".join(line + b"\n" for line in lines[:count])
    same = hashlib.sha256(content).hexdigest() == seal.get("sha256")
    return same and len(lines) >= count


def _is_average(line: bytes, after_step: int) -> bool:
    entry = read_entry(line)
    return entry is not None and entry.get("event") == AVERAGE and entry["step"] <= after_step


def _what_is_gone(path: Path, lines: list[bytes], logged: int, seals: dict[str, dict[str, Any]]) -> str:
    step = seals[str(logged)].get("step")
    sealed = f"{logged} lines were written up to step {step}"
    left = "the checkpoints are sound and training goes on; copy the file again if you have it"
    if not path.exists():
        return f"{path} is gone: {sealed}; {left}"
    intact = [other for other in seals.values() if _is_intact(lines, _lines_of(other, seals), other)]
    since = max((int(seal.get("step", 0)) for seal in intact), default=0)
    where = f"between the steps {since} and {step}" if since else f"at or before step {step}"
    if len(lines) < logged:
        return f"{path} has {len(lines)} lines where {sealed}: {logged - len(lines)} are gone, {where}; {left}"
    return f"{path} was altered {where}: {sealed}, and these are others; {left}"


def _lines_of(seal: dict[str, Any], seals: dict[str, dict[str, Any]]) -> int:
    return next(int(lines) for lines, other in seals.items() if other is seal)


class UnwrittenLog(MetricsLog):
    """The log of a process that writes none: another one does."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> Self:
        return self

    def seal(self, step: int) -> int:
        """Seal nothing."""
        return 0

    def has(self, event: str, step: int) -> bool:
        """Know of no entry."""
        return False

    def add(self, event: str, step: int, values: dict[str, Any]) -> None:
        """Write nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close nothing."""


def summary_writer() -> Any:
    """Return TensorBoard's class for writing its log.

    Raises:
        RecipeError: it is not installed.
    """
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RecipeError(
            "training.tensorboard is true, but TensorBoard is not installed; pip install 'phmctl[tensorboard]'"
        ) from None
    return SummaryWriter
