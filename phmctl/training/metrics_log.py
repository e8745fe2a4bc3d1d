"""``metrics.jsonl``: one JSON object a line, appended as the training goes; and TensorBoard beside it, if asked."""

import json
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from phmctl.errors import RecipeError
from phmctl.files import write_atomic, writing


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the entries of a metrics file; a line that a crash cut short is left out."""
    if not path.is_file():
        return []
    entries = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            entries.append(json.loads(line))
        except ValueError:
            break
    return entries


class MetricsLog:
    """Appends entries; a context. On entering it, what lies beyond the step is dropped, so that no step stands twice.

    Args:
        path: the ``metrics.jsonl``; nothing is written to it before the context is entered.
        after_step: keep entries up to this step.
        tensorboard: a folder for TensorBoard's own log, or None.

    Raises:
        RecipeError: TensorBoard is asked for but not installed.
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
