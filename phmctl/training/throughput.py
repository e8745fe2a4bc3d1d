"""Speed: real tokens a second, without the time of validation and saving."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Throughput:
    """Counts tokens between log lines against the clock.

    Args:
        seconds: trained before this process began.
    """

    def __init__(self, seconds: float = 0.0) -> None:
        self._origin = time.perf_counter() - seconds
        self._seconds = 0.0
        self.restart()

    def restart(self) -> None:
        """Begin a new interval."""
        self._began = time.perf_counter()
        self._idle = 0.0
        self._steps = self._targets = self._tokens = 0

    def count(self, targets: int, tokens: int) -> None:
        """Count one step's target tokens and tokens of both sides."""
        self._steps += 1
        self._targets += targets
        self._tokens += tokens

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time inside out of the interval."""
        began = time.perf_counter()
        try:
            yield
        finally:
            self._idle += time.perf_counter() - began

    def measure(self) -> None:
        """Take the interval's time now."""
        self._seconds = max(time.perf_counter() - self._began - self._idle, 1e-9)

    @property
    def elapsed(self) -> float:
        """Seconds since the training began, all its processes together."""
        return time.perf_counter() - self._origin

    @property
    def seconds_a_step(self) -> float:
        """Of the interval measured last."""
        return self._seconds / max(self._steps, 1)

    def rates(self) -> dict[str, float]:
        """Return the measured interval's rates and the seconds in all."""
        return {
            "target_tokens_per_second": self._targets / self._seconds,
            "tokens_per_second": self._tokens / self._seconds,
            "seconds_per_step": self.seconds_a_step,
            "seconds": self.elapsed,
        }
