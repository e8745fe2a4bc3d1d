"""Whether two systems, each trained with several seeds, differ by more than the seeds and the test items would give.

A score such as BLEU varies with the items that happen to be in the test set, which the systems share, and with the
seeds, which they do not. The difference of the two means over seeds is judged in three steps:

1. Items and seeds are drawn anew together, the items with replacement and the same for all trainings, the seeds of each
   system with replacement and for themselves: the Multi-Bootstrap (Sellam et al. 2022, "The MultiBERTs", section 3, for
   seeds that are not paired). Of S seeds S − 1 are drawn: S would make the variance of a mean too small by
   (S − 1)/S, which is a half for two seeds (Rao and Wu 1988, section 2.2).
2. The standard deviation of the differences so drawn is the standard error of the difference.
3. The difference over its standard error is taken as Student's t, two-sided, with the degrees of freedom of Welch and
   Satterthwaite (1946): only the seeds' part of the variance is estimated from few numbers. The bootstrap's own
   quantiles are too narrow for few seeds: where the seeds were all that varied, 5 % became 12 % with three seeds and
   29 % with two in 400 simulated comparisons of equal systems, and 4 % and 4 % with t. Where they hardly mattered both
   were far below 5 %, for items that go with a seed are counted twice (Owen 2007): the test errs on the safe side.

Where one system has a single seed and the other several, its seed is taken to vary as theirs do: the seeds' part of the
variance is s² · (1/S₁ + 1/S₂), with the S₂ − 1 degrees of freedom of s². With one seed a side nothing can be said of
others: the items alone are drawn, and the result is about these two trainings. Where several comparisons are made,
:func:`holm` corrects for their number.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]
Scorer: TypeAlias = Callable[[Numbers], Numbers]
"""Scores a system on samples of the items: how often each item is in each sample, (B, N) -> a score a seed, (B, S)."""

_AT_ONCE = 20_000_000  # numbers of a block of samples
_NORMAL_FROM = 1e4  # degrees of freedom from which t is as good as normal
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)  # of the integral of t's density


@dataclass(frozen=True)
class Estimate:
    """A number and its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """Two systems on the same items."""

    baseline: Estimate  # their means over seeds; the interval of a single seed is over items alone
    system: Estimate
    difference: Estimate  # system less baseline
    # how probable a difference at least so large, either way, is if the systems do not differ; not below 1/(samples
    # + 1).
    p_value: float
    # how probable a difference at least so high is if the system is worse by the margin; None without a margin
    p_not_inferior: float | None = None


def difference(
    baseline: Scorer, system: Scorer, items: int, *, margin: float | None = None, samples: int = 1000
) -> Difference:
    """Compare two systems as the module's text says.

    With a `margin`, in units of the score, also test whether the system is not inferior by it: the lower of the two
    one-sided tests (TOST; Schuirmann 1987).
    """
    chance = np.random.default_rng(12345)  # the same every time
    one, other = (each(np.ones((1, items)))[0] for each in (baseline, system))  # (S,) each
    weights = []  # (B, S) each: of S seeds S − 1 are drawn
    for seeds in map(len, (one, other)):
        fewer = max(seeds - 1, 1)
        weights.append(chance.multinomial(fewer, np.full(seeds, 1 / seeds), size=samples) / fewer)
    parts = []
    for start in range(0, samples, max(_AT_ONCE // items, 1)):
        block = slice(start, min(start + max(_AT_ONCE // items, 1), samples))
        drawn = (chance.integers(items, size=items) for _ in range(block.stop - block.start))
        counts = np.stack([np.bincount(each, minlength=items) for each in drawn]).astype(float)  # (B, N)
        pairs = zip((baseline, system), weights, strict=True)
        parts.append(np.stack([(scorer(counts) * chosen[block]).sum(1) for scorer, chosen in pairs]))
    drawn_one, drawn_other = np.concatenate(parts, axis=1)  # (B,) each
    value = float(other.mean() - one.mean())
    error, freedom = _standard_error(drawn_other - drawn_one, one, other)
    p_value = 1.0 if not value else two_sided_t(value / error, freedom) if error else 0.0
    inferior = 0.0 if margin is None else _above(value + margin, error, freedom)
    if items < 2 and not error:  # one item and one seed a side say nothing of others
        p_value = inferior = 1.0
    return Difference(
        _interval(float(one.mean()), *_standard_error(drawn_one, one)),
        _interval(float(other.mean()), *_standard_error(drawn_other, other)),
        _interval(value, error, freedom),
        max(p_value, 1 / (samples + 1)),
        None if margin is None else max(inferior, 1 / (samples + 1)),
    )


def accuracy_scorer(right: Sequence[Sequence[bool]]) -> Scorer:
    """Score by the share of right answers, in per cent."""
    table = np.asarray(right, dtype=float)  # (S, N)
    return lambda counts: 100 * counts @ table.T / table.shape[1]


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct for the number of tests (Holm 1979): the family-wise error stays below the level that one asks for."""
    corrected, largest = [1.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def two_sided_t(t: float, freedom: float) -> float:
    """Return how probable it is that Student's t is at least so far from zero.

    The density is integrated over θ = atan(t / √ν), where it is proportional to cos^(ν−1) θ.
    """
    if freedom > _NORMAL_FROM:
        return math.erfc(abs(t) / math.sqrt(2))
    start = math.atan(abs(t) / math.sqrt(freedom))
    half = (math.pi / 2 - start) / 2
    tail = half * float(_WEIGHTS @ np.cos(start + half * (_NODES + 1)) ** (freedom - 1))
    whole = math.sqrt(math.pi) / 2 * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    return min(tail / whole, 1.0)


def _above(excess: float, error: float, freedom: float) -> float:
    """Return how probable Student's t is at least as high as the excess over its standard error."""
    if not error:
        return 0.0 if excess > 0 else 1.0
    half = two_sided_t(excess / error, freedom) / 2
    return half if excess > 0 else 1 - half


def _standard_error(drawn: Numbers, *scores: Numbers) -> tuple[float, float]:
    """Return a standard error and its degrees of freedom: the seeds' part of it comes from a few scores a system.

    The samples drawn do not vary with a single seed: beside several it gets their variance.
    """
    several = [each for each in scores if len(each) > 1]
    if not several:
        return float(drawn.std(ddof=1)), math.inf
    variance = float(drawn.var(ddof=1))
    if len(several) < len(scores):  # Satterthwaite's freedom grows just where s² is too small by chance: 8 % were wrong
        return math.sqrt(variance + float(several[0].var(ddof=1))), len(several[0]) - 1.0
    parts = [(float(each.var(ddof=1)) / len(each), len(each) - 1.0) for each in several]  # variance, its freedom
    small = sum(part**2 / freedom for part, freedom in parts)
    return math.sqrt(variance), max(variance**2 / small, min(freedom for _, freedom in parts)) if small else math.inf


def _interval(value: float, error: float, freedom: float) -> Estimate:
    """Return value ± t · standard error with the t that is exceeded one time in twenty."""
    low, high = 0.0, 1e4
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if two_sided_t(middle, freedom) > 0.05 else (low, middle)
    half = high * error
    return Estimate(value, value - half, value + half)
