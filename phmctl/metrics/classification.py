"""Scores of classifiers: accuracy with an interval, F1 by class, the confusion matrix, McNemar's exact test.

Predictions and references have the same length, at least 1. :func:`parts` groups items by a
number, to break a score down.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from operator import eq

_MAX_VALUES = 12  # distinct values that get a group each
_RANGES = 10  # groups of more values
Label = str | int  # a name or a number
Value = int | str | None  # the value or the range of values of a group, None if unknown
ItemGroup = tuple[Value, list[int]]  # the value of a group, and the rows of the items

_Z = 1.959963984540054  # 97.5 % quantile of the normal distribution


@dataclass(frozen=True)
class Accuracy:
    """Accuracy from 0 to 1 with the 95 % interval (Wilson 1927)."""

    value: float
    lower: float
    upper: float
    right: int
    total: int


@dataclass(frozen=True)
class ClassScore:
    """Precision, recall and F1 of a label, 0 where undefined. `support` counts the references."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


def accuracy(predictions: Sequence[Label], references: Sequence[Label]) -> Accuracy:
    right = sum(map(eq, predictions, references))
    total = len(references)
    share = right / total
    weight = _Z * _Z / total
    centre = (share + weight / 2) / (1 + weight)
    half = _Z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return Accuracy(share, max(0.0, centre - half), min(1.0, centre + half), right, total)


def class_scores(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> list[ClassScore]:
    predicted, support = Counter(predictions), Counter(references)
    right = Counter(guess for guess, truth in zip(predictions, references, strict=True) if guess == truth)
    scores = []
    for label in labels:
        precision = _ratio(right[label], predicted[label])
        recall = _ratio(right[label], support[label])
        f1 = _ratio(2 * right[label], predicted[label] + support[label])
        scores.append(ClassScore(label, precision, recall, f1, support[label]))
    return scores


def confusion(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> list[list[int]]:
    """Return how often each label (row) was predicted as each label (column)."""
    pairs = Counter(zip(references, predictions, strict=True))
    return [[pairs[truth, guess] for guess in labels] for truth in labels]


def mcnemar(baseline: Sequence[Label], system: Sequence[Label], references: Sequence[Label]) -> float:
    """Return the exact two-sided p-value that two classifiers have equal error rates (McNemar 1947)."""
    outcomes = Counter((old == true, new == true) for old, new, true in zip(baseline, system, references, strict=True))
    lost, won = outcomes[True, False], outcomes[False, True]
    count = lost + won
    term = tail = 1  # C(count, k) and the sum from k = 0, as exact integers
    for k in range(min(lost, won)):
        term = term * (count - k) // (k + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << count))


def _ratio(part: int, total: int) -> float:
    return part / total if total else 0.0


def parts(values: Sequence[int]) -> list[ItemGroup]:
    """Group rows by value in ascending order. Unknown values (below 0) come last.

    More than twelve distinct values make at most ten ranges with about equally many items.
    """
    known = sorted(value for value in values if value >= 0)
    cuts = sorted(set(known))
    if len(cuts) > _MAX_VALUES:
        cuts = sorted({known[len(known) * index // _RANGES] for index in range(_RANGES)})
    rows: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
    for row, value in enumerate(values):
        rows[bisect_right(cuts, value) - 1].append(row)  # unknown values go to the last list
    groups: list[ItemGroup] = []
    for members in filter(None, rows[:-1]):
        low = min(values[row] for row in members)
        high = max(values[row] for row in members)
        groups.append((low if low == high else f"{low}–{high}", members))
    if rows[-1]:
        groups.append((None, rows[-1]))
    return groups


def part_name(value: Value) -> str:
    return "unknown" if value is None else str(value)
