"""What a person sees of a sweep: one table of what runs on a terminal, plain lines elsewhere. All of it on stderr."""

import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from phmctl.console import note, people, printable
from phmctl.sweeps.pool import Job

if TYPE_CHECKING:
    from rich.live import Live
    from rich.table import Table

_EVERY = 30.0  # seconds between two plain lines of one cell
_REDRAW = 0.2  # seconds between two drawings, at least


class SweepProgress:
    """Shows `total` cells, `done` of which had nothing to do. A context manager."""

    def __init__(self, total: int, done: int) -> None:
        self._total, self._done, self._skipped = total, done, done
        self._running: dict[int, tuple[Job, str]] = {}
        self._due: dict[int, float] = {}
        self._live: Live | None = None
        self._drawn = 0.0

    def __enter__(self) -> Self:
        if self._skipped:
            note(f"{self._skipped} of {self._total} cells: nothing to do")
        console = people()
        if console.is_terminal:
            from rich.live import Live

            self._live = Live(console=console, auto_refresh=False, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def said(self, job: Job, line: str | None) -> None:
        """Show that a cell began (None), or what it said."""
        self._running[id(job)] = (job, line or "")
        if line is None:
            self._say(f"{job.label}: started")
        elif self._live is None and line.startswith("step ") and time.monotonic() >= self._due.get(id(job), 0.0):
            self._due[id(job)] = time.monotonic() + _EVERY
            note(f"{job.label}: {line}")
        self._draw()

    def ended(self, job: Job, state: str, best: str) -> None:
        """Show that a cell ended."""
        del self._running[id(job)]
        self._done += 1
        self._say(f"[{self._done}/{self._total}] {job.label}: {state} after {job.seconds / 60:.1f} min, {best}")
        self._draw(now=True)

    def _say(self, message: str) -> None:
        if self._live is None:
            note(message)
        else:
            self._live.console.print(printable(message), soft_wrap=True)

    def _draw(self, now: bool = False) -> None:
        if self._live is not None and (now or time.monotonic() - self._drawn >= _REDRAW):
            self._drawn = time.monotonic()
            self._live.update(self._table(), refresh=True)

    def _table(self) -> "Table":
        from rich.table import Table

        title = f"{self._done} of {self._total} cells done"
        table = Table("cell", "min", "now", title=title, title_justify="left", box=None)
        for job, line in self._running.values():
            began = job.began or time.monotonic()
            table.add_row(printable(job.label), f"{(time.monotonic() - began) / 60:.1f}", printable(line))
        return table
