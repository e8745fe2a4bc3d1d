"""``metrics.jsonl``: one JSON object a line, appended as the training goes; and TensorBoard beside it, if asked."""

import json
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from phmctl.errors import RecipeError, RunError
from phmctl.files import write_atomic, writing


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a metrics file; an end that a crash cut short, without a line break, is left out.

    Raises:
        RunError: another line is no entry; the message names it.
    """
    try:
        *lines, end = path.read_bytes().split(b"\n")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise RunError(f"{path} cannot be read ({error.strerror}); copy the run again") from error
    entries = [_entry(line) for line in lines]
    if None in entries:
        raise RunError(
            f"{path}, line {entries.index(None) + 1} is damaged: no JSON object with a step; "
            "copy the run again, or remove the line if you can do without it"
        )
    return [entry for entry in (*entries, _entry(end)) if entry is not None]


def _entry(line: bytes) -> dict[str, Any] | None:
    """Return a line's entry: a JSON object with a step and, if any, seconds that are a number; None for another."""
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):  # bytes that are not UTF-8 too
        return None
    sound = isinstance(entry, dict) and type(entry.get("step")) is int
    return entry if sound and isinstance(entry.get("seconds", 0.0), (int, float)) else None


class MetricsLog:
    """Appends entries; a context. On entering it, what lies beyond the step is dropped, so that no step stands twice.

    Args:
        path: the ``metrics.jsonl``; nothing is written to it before the context is entered.
        after_step: keep entries up to this step.
        tensorboard: a folder for TensorBoard's own log, or None.

    Raises:
        RecipeError: TensorBoard is asked for but not installed.
        RunError: the file is damaged.
    """

    def __init__(self, path: Path, after_step: int = 0, tensorboard: Path | None = None) -> None:
        self._path = path
        self._after_step = after_step
        self._open_board = partial(summary_writer(), tensorboard, purge_step=after_step + 1) if tensorboard else None
        self._kept = [entry for entry in read_metrics(path) if entry["step"] <= after_step]
        # trained before this process; not every event has the time
        self.seconds = max((float(entry.get("seconds", 0.0)) for entry in self._kept), default=0.0)

    def __enter__(self) -> Self:
        """Begin; raises :class:`OutputError` when the file cannot be written."""
        write_atomic(self._path, "".join(json.dumps(entry) + "\n" for entry in self._kept))
        with writing(self._path):
            self._handle = self._path.open("ab", buffering=0)  # a line is on its way to the disk when add() returns
        self._board = self._open_board() if self._open_board else None
        return self

    def add(self, event: str, step: int, values: dict[str, Any]) -> None:
        """Append one entry.

        Raises:
            OutputError: the disk is full.
        """
        with writing(self._path):
            self._handle.write((json.dumps({"event": event, "step": step, **values}) + "\n").encode())
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{event}/{name}", value, step)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._handle.close()
        if self._board is not None:
            self._board.close()


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
