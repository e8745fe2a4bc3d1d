"""Scores of classifiers: accuracy with its interval, F1 by class, the confusion table, McNemar's exact test.

:func:`parts` divides items by a whole number that each of them has, to break a score down.

Labels are strings. Wherever a function takes predictions and references, both have the same length, at least one.
"""

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

_MOST, _RANGES = 12, 10  # values that have a part each; parts of more values
Value = int | str | None  # that of all of a part's items, or the range of theirs; None: not known
Part = tuple[Value, list[int]]  # of some items: the value, and their rows

_Z = 1.959963984540054  # the 97.5 % point of the normal distribution


@dataclass(frozen=True)
class Accuracy:
    """A share of right answers, with Wilson's 95 % interval (Wilson 1927). All from 0 to 1."""

    value: float
    lower: float
    upper: float
    right: int
    total: int


@dataclass(frozen=True)
class ClassScore:
    """Precision, recall and F1 of one label, 0 where undefined; `support` is how often it is right."""

    label: str
    precision: float
    recall: float
    f1: float
    support: int


@dataclass(frozen=True)
class McNemar:
    """Two classifiers on the same items."""

    difference: float  # accuracy of the system less that of the baseline
    only_baseline: int  # items that only the baseline has right
    only_system: int  # items that only the system has right
    p_value: float  # how probable a split at least so uneven is if both err equally often; exact, two-sided


def accuracy(predictions: Sequence[str], references: Sequence[str]) -> Accuracy:
    right, total = sum(map(str.__eq__, predictions, references)), len(references)
    share, weight = right / total, _Z * _Z / total
    centre = (share + weight / 2) / (1 + weight)
    half = _Z * math.sqrt(share * (1 - share) / total + weight / (4 * total)) / (1 + weight)
    return Accuracy(share, max(0.0, centre - half), min(1.0, centre + half), right, total)


def class_scores(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> list[ClassScore]:
    predicted, support = Counter(predictions), Counter(references)
    right = Counter(guess for guess, truth in zip(predictions, references, strict=True) if guess == truth)
    return [
        ClassScore(
            label,
            _ratio(right[label], predicted[label]),
            _ratio(right[label], support[label]),
            _ratio(2 * right[label], predicted[label] + support[label]),
            support[label],
        )
        for label in labels
    ]


def confusion(predictions: Sequence[str], references: Sequence[str], labels: Sequence[str]) -> list[list[int]]:
    """Return how often each label (row) was predicted as each (column)."""
    pairs = Counter(zip(references, predictions, strict=True))
    return [[pairs[truth, guess] for guess in labels] for truth in labels]


def mcnemar(baseline: Sequence[str], system: Sequence[str], references: Sequence[str]) -> McNemar:
    """Compare two classifiers by McNemar's exact test (McNemar 1947): a binomial test of the items that differ."""
    outcomes = Counter((old == true, new == true) for old, new, true in zip(baseline, system, references, strict=True))
    lost, won = outcomes[True, False], outcomes[False, True]
    count = lost + won
    term = tail = 1  # C(count, k), and their sum, from k = 0 on: whole numbers, so nothing is lost
    for k in range(min(lost, won)):
        term = term * (count - k) // (k + 1)
        tail += term
    return McNemar((won - lost) / len(references), lost, won, min(1.0, 2 * tail / (1 << count)))


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def parts(values: Sequence[int]) -> list[Part]:
    """Return the rows of each value, ascending, those of an unknown one (below 0) last.

    More than twelve values make ten ranges, or fewer, of about as many items each.
    """
    known = sorted(value for value in values if value >= 0)
    cuts = sorted(set(known))
    if len(cuts) > _MOST:
        cuts = sorted({known[len(known) * place // _RANGES] for place in range(_RANGES)})
    rows: list[list[int]] = [[] for _ in range(len(cuts) + 1)]
    for row, value in enumerate(values):
        rows[bisect_right(cuts, value) - 1].append(row)  # below the first cut: the last list
    found: list[Part] = []
    for members in filter(None, rows[:-1]):
        low, high = min(values[row] for row in members), max(values[row] for row in members)
        found.append((low if low == high else f"{low}–{high}", members))
    return [*found, (None, rows[-1])] if rows[-1] else found


def part_name(value: Value) -> str:
    return "unknown" if value is None else str(value)
