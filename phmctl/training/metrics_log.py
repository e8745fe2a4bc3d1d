"""Writing ``metrics.jsonl``: a JSON object a line, appended as the training goes; and TensorBoard beside it, if asked.

A checkpoint is the measure of the log: a training that goes on from one keeps the lines up to its step, so no step is
logged twice.
"""

import os
from functools import partial
from pathlib import Path
from typing import Any, Self

from phmctl.errors import RecipeError
from phmctl.files import write_atomic, writing
from phmctl.runs.metrics import entry_line, read_lines

VALIDATION, EARLY_STOP = "validation", "early_stop"


class MetricsLog:
    """Appends entries; a context. On entering it, what lies beyond the checkpoint is dropped.

    Args:
        path: the ``metrics.jsonl``, untouched before the context is entered; None to write nothing.
        step: of the checkpoint: keep entries up to it.
        validated: its newest validation: of these, and early stops, keep entries up to it. By default `step`.
        tensorboard: a folder for TensorBoard's own log, or None.
    """

    def __init__(
        self, path: Path | None, step: int = 0, validated: int | None = None, tensorboard: Path | None = None
    ) -> None:
        self._path = path
        self._board: Any = None
        self._new_board = partial(summary_writer(), tensorboard, purge_step=step + 1) if tensorboard else None
        last = {VALIDATION: step if validated is None else validated}
        last[EARLY_STOP] = last[VALIDATION]
        kept = [
            (line, entry)
            for line, entry in (read_lines(path) if path else ())
            if entry["step"] <= last.get(str(entry.get("event")), step)
        ]
        self._kept = b"".join(line + b"\n" for line, _ in kept)
        self._events = {(entry.get("event"), entry["step"]) for _, entry in kept}
        # trained before this process; not every event has the time
        self.seconds = max((float(entry.get("seconds", 0.0)) for _, entry in kept), default=0.0)

    def __enter__(self) -> Self:
        """Begin; raises :class:`OutputError` when the file cannot be written."""
        if self._path is not None:
            if not self._path.is_file() or self._path.read_bytes() != self._kept:
                write_atomic(self._path, self._kept)
            with writing(self._path):
                self._file = self._path.open("ab", buffering=0)  # a line is with the system when add() returns
        if self._new_board is not None:
            self._board = self._new_board()
        return self

    def add(self, event: str, step: int, values: dict[str, Any]) -> None:
        """Append one entry (OutputError: the disk is full); a torn line is dropped when the training goes on."""
        if self._path is None:
            return
        line = entry_line({"event": event, "step": step, **values})
        with writing(self._path):
            while line:
                line = line[self._file.write(line) :]
        self._events.add((event, step))
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{event}/{name}", value, step)

    def has(self, event: str, step: int) -> bool:
        """Whether there is such an entry."""
        return (event, step) in self._events

    def flush(self) -> None:
        """Bring what was added to the disk, before the checkpoint that counts on it. Raises OutputError."""
        if self._path is not None:
            with writing(self._path):
                os.fsync(self._file.fileno())

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def summary_writer() -> Any:
    """Return TensorBoard's class for writing its log; RecipeError where it is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RecipeError(
            "training.tensorboard is true, but TensorBoard is not installed; pip install 'phmctl[tensorboard]'"
        ) from None
    return SummaryWriter
