"""Report a training: its speed, ``metrics.jsonl``, and optionally TensorBoard's log."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import Any, Self

from phmctl.errors import RecipeError
from phmctl.runs.results import log_line, read_log_lines
from phmctl.storage import write_atomic, writing

_MINUTE = 60.0  # seconds


class Throughput:
    """Measures tokens per second between log lines. `seconds` is the training time of earlier processes."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._origin = time.perf_counter() - seconds
        self._paused = seconds  # until now
        self._first_minute: list[float] = []  # tokens per second of the log lines of this process's first minute
        self._warned = False
        self._restart()

    def _restart(self) -> None:
        self._began = time.perf_counter()
        self._steps = self._tokens = 0

    @property
    def elapsed(self) -> float:
        """The seconds of the training, with earlier processes and pauses."""
        return time.perf_counter() - self._origin

    @property
    def trained(self) -> float:
        """The seconds of this process without pauses."""
        return self.elapsed - self._paused

    def count(self, tokens: int) -> None:
        self._steps += 1
        self._tokens += tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Exclude the block's time from the interval."""
        before = time.perf_counter()
        try:
            yield
        finally:
            pause = time.perf_counter() - before
            self._began += pause
            self._paused += pause

    def rates(self) -> dict[str, float]:
        """Return the rates of the interval and the total seconds, and start the next interval."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        rates = {
            "tokens_per_second": self._tokens / seconds,
            "seconds_per_step": seconds / max(self._steps, 1),
            "seconds": self.elapsed,
        }
        if self.trained <= _MINUTE or not self._first_minute:
            self._first_minute.append(rates["tokens_per_second"])
        self._restart()
        return rates

    def slowed(self, speed: float) -> bool:
        """Return, once, whether a speed in tokens per second is below a third of the first minute's."""
        slow = not self._warned and self.trained > _MINUTE and speed < fmean(self._first_minute) / 3
        self._warned |= slow
        return slow


VALIDATION = "validation"
EARLY_STOP = "early_stop"


class MetricsLog:
    """Appends entries to a training log. A context manager. Entering it drops the entries after the checkpoint.

    Args:
        path: the ``metrics.jsonl``, which is not changed before the context is entered. None writes nothing.
        step: step of the checkpoint. Later entries are dropped.
        validated: step of the newest validation. Later validations and early stops are dropped. By default `step`.
        tensorboard: folder of TensorBoard's log, or None.
    """

    def __init__(
        self, path: Path | None, step: int = 0, validated: int | None = None, tensorboard: Path | None = None
    ) -> None:
        self._path = path
        self._board: Any = None
        self._tensorboard = tensorboard
        self._step = step
        validated = step if validated is None else validated
        last_step = {VALIDATION: validated, EARLY_STOP: validated}
        self._kept = b""
        self._events: set[tuple[object, int]] = set()
        self.seconds = 0.0  # trained by earlier processes
        for line, entry in read_log_lines(path) if path else ():
            event = entry.get("event")
            if entry["step"] <= last_step.get(str(event), step):
                self._kept += line + b"\n"
                self._events.add((event, entry["step"]))
                self.seconds = max(self.seconds, float(entry.get("seconds", 0.0)))

    def __enter__(self) -> Self:
        """Open the file. Raises OutputError."""
        if self._path is not None:
            if not self._path.is_file() or self._path.read_bytes() != self._kept:
                write_atomic(self._path, self._kept)
            with writing(self._path):
                self._file = self._path.open("ab", buffering=0)
        if self._tensorboard is not None:
            self._board = summary_writer()(self._tensorboard, purge_step=self._step + 1)
        return self

    def add(self, event: str, step: int, values: dict[str, object]) -> None:
        """Append an entry. After OutputError (a full disk) the incomplete line is dropped when training is resumed."""
        if self._path is None:
            return
        line = log_line({"event": event, "step": step, **values})
        with writing(self._path):
            while line:
                line = line[self._file.write(line) :]
        self._events.add((event, step))
        if self._board is not None:
            for name, value in values.items():
                self._board.add_scalar(f"{event}/{name}", value, step)

    def has(self, event: str, step: int) -> bool:
        return (event, step) in self._events

    def flush(self) -> None:
        """Flush the entries to the disk, so that a checkpoint is never newer than the log. Raises OutputError."""
        if self._path is not None:
            with writing(self._path):
                os.fsync(self._file.fileno())

    def __exit__(self, *_: object) -> None:
        if self._path is not None:
            self._file.close()
        if self._board is not None:
            self._board.close()


def summary_writer() -> Any:
    """Return TensorBoard's SummaryWriter class. Raises RecipeError if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError:
        raise RecipeError(
            "training.tensorboard is true, but TensorBoard is not installed; pip install 'phmctl[tensorboard]'"
        ) from None
    return SummaryWriter
