"""Measurements that hold where the machine's speed drifts: candidates take turns, ratios are taken in a round."""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch

from phmctl.backends.measuring import Call, Clock, clock_of, sample
from phmctl.console import progress


@dataclass(frozen=True)
class Spread:
    """The median and the quartiles of a sample."""

    median: float
    lower: float  # first quartile
    upper: float  # third quartile

    @classmethod
    def of(cls, sample: list[float]) -> "Spread":
        """Summarise a sample of at least one number."""
        if len(sample) == 1:
            return cls(sample[0], sample[0], sample[0])
        lower, median, upper = statistics.quantiles(sample, n=4, method="inclusive")
        return cls(median, lower, upper)

    @property
    def inverse(self) -> "Spread":
        """The spread of what is one over this: of seconds that of a rate, of a ratio of seconds that of a speed."""
        return Spread(1 / self.median, 1 / self.upper, 1 / self.lower)

    @property
    def milliseconds(self) -> str:
        """The median of seconds, for people."""
        return f"{1e3 * self.median:.2f}"

    def __str__(self) -> str:
        """Return the median and the quartiles, for people."""
        return f"{self.median:.2f} ({self.lower:.2f}–{self.upper:.2f})"


@dataclass(frozen=True)
class Timing:
    """What one candidate took."""

    name: str
    rounds: int
    calls: int  # in each round
    seconds: Spread  # of one call
    ratio: Spread  # of one call to the baseline's in the same round; 1 for the baseline
    best: float  # seconds of one call in the shortest sample: nearest to a quiet machine where others are at work
    best_ratio: float  # of the two shortest samples
    samples: Sequence[float] = ()  # seconds of one call in each round

    def ratio_to(self, other: "Timing") -> Spread:
        """Return the spread of one call's seconds to another candidate's, within a round."""
        return Spread.of([mine / theirs for mine, theirs in zip(self.samples, other.samples, strict=True)])

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers."""
        return asdict(self)


@contextmanager
def watched(what: str, candidates: int, rounds: int, comparisons: int = 1) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal over so many comparisons; yields what :func:`compare` takes as `advance`."""
    with progress(f"measuring {what}", comparisons * candidates * (rounds + 1), plain=False) as advance:
        yield advance


def compare(
    candidates: Mapping[str, Call],
    *,
    rounds: int = 20,
    baseline: str | None = None,
    warmup: int = 3,
    min_seconds: float = 0.002,
    device: torch.device | str = "cpu",
    advance: Callable[[int], None] = lambda count: None,
) -> dict[str, Timing]:
    """Time candidates in turns.

    Each round runs every candidate once, for as many calls as fill `min_seconds`, and begins with another one than the
    round before, so that none always finds the caches as the same neighbour left them.

    Args:
        candidates: name -> function without arguments.
        rounds: samples of each candidate.
        baseline: the candidate that ratios are taken to; the first where None.
        warmup: calls of each candidate before the first sample, at least one.
        min_seconds: the shortest sample.
        device: what the candidates run on; a GPU is synchronised around each sample.
        advance: told after each sample, the warm-up's included: ``(rounds + 1) × candidates`` in all.

    Returns:
        name -> timing, in the order of `candidates`.

    Raises:
        ValueError: no candidates, no rounds, or a baseline that is none of the candidates.
    """
    names = list(candidates)
    if not names or rounds < 1:
        raise ValueError("compare wants at least one candidate and one round")
    baseline = names[0] if baseline is None else baseline
    if baseline not in candidates:
        raise ValueError(f"baseline {baseline!r} is none of {', '.join(names)}")
    clock = clock_of(device)
    calls: dict[str, int] = {}
    for name, call in candidates.items():
        calls[name] = _calls(call, clock, warmup, min_seconds)
        advance(1)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        turn = index % len(names)
        for name in names[turn:] + names[:turn]:
            samples[name].append(sample(candidates[name], clock, calls[name]))
            advance(1)
    return {name: _timing(name, samples, calls[name], baseline) for name in names}


def _calls(call: Call, clock: Clock, warmup: int, min_seconds: float) -> int:
    """Warm a candidate up, and return how many calls fill a sample."""
    seconds = min(sample(call, clock, 1) for _ in range(max(1, warmup)))
    return max(1, math.ceil(min_seconds / max(seconds, 1e-9)))


def _timing(name: str, samples: Mapping[str, list[float]], calls: int, baseline: str) -> Timing:
    own = samples[name]
    ratios = [mine / base for mine, base in zip(own, samples[baseline], strict=True)]
    best_ratio = min(own) / min(samples[baseline])
    return Timing(name, len(own), calls, Spread.of(own), Spread.of(ratios), min(own), best_ratio, own)
