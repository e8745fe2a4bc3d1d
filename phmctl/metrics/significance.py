"""Test the difference of two systems over seeds and test items.

A score such as BLEU varies with the test items, which both systems share, and with the seeds, which they do not share.
The difference of the two means over seeds is tested in three steps:

1. Items and seeds are resampled together with the Multi-Bootstrap (Sellam et al. 2022, "The MultiBERTs", section 3, for
   unpaired seeds): items with replacement, the same for all trainings, the seeds of each system with replacement and
   independently. Of S seeds S − 1 are drawn, because S draws would make the variance of a mean too small by (S − 1)/S,
   a half for two seeds (Rao and Wu 1988, section 2.2).
2. The standard deviation of the resampled differences is the standard error of the difference.
3. The difference over the standard error is tested as Student's t, two-sided, with the degrees of freedom of Welch and
   Satterthwaite (1946), because only the seeds' part of the variance is estimated from few numbers. Bootstrap
   quantiles are too narrow for few seeds: in 400 simulated comparisons of equal systems in which only seeds varied,
   5 % became 12 % with three seeds and 29 % with two. With t both were 4 %. If seeds hardly matter, both tests are far
   below 5 %, because items that go with a seed are counted twice (Owen 2007): the test is conservative.

If one system has a single seed, that seed is assumed to vary as the several of the other: the seeds' part of the
variance is s² · (1/S₁ + 1/S₂), with the S₂ − 1 degrees of freedom of s². If both have a single seed, only items are
resampled, and the result is about these two trainings. :func:`holm` corrects for the number of comparisons.

Student's distribution is integrated here because it is all that phmctl would need from scipy, which is 100 MB large.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.float64]
Scorer: TypeAlias = Callable[[Numbers], Numbers]
"""Maps how often each item is in each sample, (B, N), to the score of each seed on each sample, (B, S)."""

_BLOCK = 20_000_000  # numbers in a block of samples
_NORMAL_FROM = 1e4  # degrees of freedom from which the normal distribution replaces t
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(200)  # Gauss and Legendre's quadrature


@dataclass(frozen=True)
class Estimate:
    """A number and the 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Difference:
    """The comparison of two systems on the same items."""

    baseline: Estimate  # mean over seeds (the interval of a single seed is over items only)
    system: Estimate
    difference: Estimate  # system minus baseline
    p_value: float  # two-sided; of the bootstrap at least 1/(samples + 1)


def difference(baseline: Scorer, system: Scorer, items: int, *, samples: int = 1000) -> Difference:
    """Compare two systems by the test of this module's docstring."""
    generator = np.random.default_rng(12345)  # a fixed seed, so that results can be repeated
    baseline_scores = baseline(np.ones((1, items)))[0]  # (S,)
    system_scores = system(np.ones((1, items)))[0]
    weights = []  # (B, S) for each system
    for seeds in (len(baseline_scores), len(system_scores)):
        draws = max(seeds - 1, 1)
        weights.append(generator.multinomial(draws, np.full(seeds, 1 / seeds), size=samples) / draws)
    blocks = []
    block_size = max(_BLOCK // items, 1)
    for start in range(0, samples, block_size):
        block = slice(start, min(start + block_size, samples))
        drawn_items = [generator.integers(items, size=items) for _ in range(block.stop - block.start)]
        counts = np.stack([np.bincount(sample, minlength=items) for sample in drawn_items]).astype(float)  # (B, N)
        pairs = zip((baseline, system), weights, strict=True)
        blocks.append(np.stack([(scorer(counts) * weight[block]).sum(1) for scorer, weight in pairs]))
    drawn_baseline, drawn_system = np.concatenate(blocks, axis=1)  # (B,) each
    value = float(system_scores.mean() - baseline_scores.mean())
    error, freedom = _standard_error(drawn_system - drawn_baseline, baseline_scores, system_scores)
    p_value = 1.0
    if value:
        p_value = two_sided_t(value / error, freedom) if error else 0.0
    if items < 2 and not error:  # a single item and a single seed per system allow no test
        p_value = 1.0
    return Difference(
        t_interval(float(baseline_scores.mean()), *_standard_error(drawn_baseline, baseline_scores)),
        t_interval(float(system_scores.mean()), *_standard_error(drawn_system, system_scores)),
        t_interval(value, error, freedom),
        max(p_value, 1 / (samples + 1)),
    )


def accuracy_scorer(right: Sequence[Sequence[bool]]) -> Scorer:
    """Return the scorer of accuracy in per cent. `right` holds the right answers of each seed."""
    table = np.asarray(right, dtype=float)  # (S, N)
    return lambda counts: 100 * counts @ table.T / table.shape[1]


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for the family-wise error rate (Holm 1979)."""
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda index: p_values[index])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def two_sided_t(t: float, freedom: float) -> float:
    """Return the probability that Student's t is at least as far from zero as `t`.

    The density is integrated over θ = atan(t / √ν), where it is proportional to cos^(ν−1) θ.
    """
    if freedom > _NORMAL_FROM:
        return math.erfc(abs(t) / math.sqrt(2))
    start = math.atan(abs(t) / math.sqrt(freedom))
    half = (math.pi / 2 - start) / 2
    tail = half * float(_WEIGHTS @ np.cos(start + half * (_NODES + 1)) ** (freedom - 1))
    total = math.sqrt(math.pi) / 2 * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    return min(tail / total, 1.0)


def _standard_error(drawn: Numbers, *scores: Numbers) -> tuple[float, float]:
    """Return the standard error of resampled values and the degrees of freedom. `scores` holds each system's."""
    with_seeds = [system for system in scores if len(system) > 1]
    if not with_seeds:
        return float(drawn.std(ddof=1)), math.inf
    variance = float(drawn.var(ddof=1))
    if len(with_seeds) < len(scores):
        # The samples do not vary with a single seed, so the other system's variance is added. Satterthwaite's degrees
        # of freedom would grow when s² is too small by chance: 8 % of the tests were wrong.
        return math.sqrt(variance + float(with_seeds[0].var(ddof=1))), len(with_seeds[0]) - 1.0
    variances = [float(system.var(ddof=1)) / len(system) for system in with_seeds]
    freedoms = [len(system) - 1.0 for system in with_seeds]
    denominator = sum(part**2 / freedom for part, freedom in zip(variances, freedoms, strict=True))
    freedom = max(variance**2 / denominator, min(freedoms)) if denominator else math.inf
    return math.sqrt(variance), freedom


def t_interval(value: float, error: float, freedom: float) -> Estimate:
    """Return the 95 % interval value ± t · error. The t of probability 5 % is found by bisection."""
    low, high = 0.0, 1e4
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        if two_sided_t(middle, freedom) > 0.05:
            low = middle
        else:
            high = middle
    half = high * error
    return Estimate(value, value - half, value + half)
