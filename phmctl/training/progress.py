"""How fast a training is, and what a person sees of it, on stderr: a live line on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from phmctl.console import note, people, printable

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


def clock(seconds: float) -> str:
    """Return ``h:mm:ss``, or ``m:ss`` below an hour."""
    hours, rest = divmod(round(max(seconds, 0.0)), 3600)
    minutes, rest = divmod(rest, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Throughput:
    """Counts tokens between log lines against the clock; `seconds` were trained before this process began."""

    def __init__(self, seconds: float = 0.0) -> None:
        self._origin = time.perf_counter() - seconds
        self._restart()

    def _restart(self) -> None:
        self._began = time.perf_counter()
        self._steps = self._targets = self._tokens = 0

    @property
    def elapsed(self) -> float:
        """Seconds since the training began."""
        return time.perf_counter() - self._origin

    def count(self, targets: int, tokens: int) -> None:
        """Count one step's target tokens and tokens of both sides."""
        self._steps += 1
        self._targets += targets
        self._tokens += tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside out of the interval."""
        before = time.perf_counter()
        try:
            yield
        finally:
            self._began += time.perf_counter() - before

    def rates(self) -> dict[str, float]:
        """Return the interval's rates and the seconds in all, and begin the next interval."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        rates = {
            "target_tokens_per_second": self._targets / seconds,
            "tokens_per_second": self._tokens / seconds,
            "seconds_per_step": seconds / max(self._steps, 1),
            "seconds": self.elapsed,
        }
        self._restart()
        return rates


class ProgressLine:
    """Shows a training of `steps` steps from step `start` on. A context manager."""

    def __init__(self, steps: int, start: int, *, quiet: bool = False) -> None:
        self._steps, self._start, self._quiet = steps, start, quiet
        self._bar: tuple[Progress, TaskID] | None = None

    def __enter__(self) -> Self:
        console = people()
        if console.is_terminal and not self._quiet:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

            columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn("{task.description}"))
            bar = Progress(*columns, console=console, transient=True)
            bar.start()
            self._bar = bar, bar.add_task("", total=self._steps, completed=self._start)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar[0].stop()
            self._bar = None

    def step(self, step: int) -> None:
        """Move the bar, on a terminal."""
        if self._bar is not None:
            self._bar[0].update(self._bar[1], completed=step)

    def log(self, step: int, figures: str) -> None:
        """Show a log interval's figures."""
        if self._bar is not None:
            self._bar[0].update(self._bar[1], description=figures)
        else:
            self.say(f"step {step}/{self._steps}  {figures}")

    def say(self, message: str) -> None:
        """Print a line that stays, above the bar."""
        if self._quiet:
            return
        if self._bar is not None:
            self._bar[0].console.print(printable(message), soft_wrap=True, markup=False, highlight=False)
        else:
            note(message)
