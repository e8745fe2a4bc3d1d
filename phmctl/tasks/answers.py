"""What runs answered on a split, and how the answers of several are compared; each task says how it has them."""

from __future__ import annotations  # commands ask kinds of tasks: numpy is imported when something is compared

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from phmctl.metrics.significance import Difference, Scorer


@dataclass(frozen=True)
class Metric:
    """A figure by which runs are compared.

    Attributes:
        name: in a result's scores.
        scale: what it is multiplied by to be shown: 100 makes a share per cent.
        higher: whether a larger one is better.
        tested: whether differences are tested.
    """

    name: str
    scale: float = 1.0
    higher: bool = True
    tested: bool = False

    def show(self, value: float) -> str:
        """Return a value of a result as people read it."""
        value *= self.scale
        return f"{value:.2f}" if abs(value) >= 0.01 or not value else f"{value:.1e}"


@dataclass(frozen=True)
class Answers:
    """What one run answered.

    Attributes:
        asked: the text of each item.
        right: its reference, or label.
        given: the answer.
        groups: numbers of the items by which scores are broken down (attractors), by name; -1 is not known.
        lowercase: whether case counts.
    """

    asked: Sequence[str]
    right: Sequence[str]
    given: Sequence[str]
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    lowercase: bool = False

    @property
    def items(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """What two runs must share to be compared."""
        return tuple(self.asked), tuple(self.right)


@dataclass(frozen=True)
class Test:
    """A difference that was tested.

    Attributes:
        method: in words.
        found: the means, the difference, p.
    """

    __test__ = False  # for pytest

    metric: str
    method: str
    found: Difference


class Comparer(Protocol):
    """How a task compares answers."""

    def scorer(self, metric: str, runs: Sequence[Answers]) -> Scorer:
        """Return what scores a model's trainings on samples of the items."""
        ...

    def paired(self, metric: str, baseline: Answers, system: Answers) -> tuple[str, float]:
        """Compare one training a side by the task's own test: its name, and p."""
        ...


OVER_SEEDS = "Multi-Bootstrap over items and seeds, Student's t"


def test_answers(by: Comparer, metric: str, baseline: Sequence[Answers], system: Sequence[Answers]) -> Test:
    """Test the difference of two models' means over seeds, the system's less the baseline's.

    With several seeds on a side as :mod:`phmctl.metrics.significance` says; with one each by the task's own paired
    test, which speaks of these two trainings.
    """
    from phmctl.metrics.significance import Difference, compare

    found = compare(by.scorer(metric, baseline), by.scorer(metric, system), len(baseline[0].given))
    if len(baseline) > 1 or len(system) > 1:
        return Test(metric, OVER_SEEDS, found)
    method, p_value = by.paired(metric, baseline[0], system[0])
    return Test(metric, method, Difference(found.baseline, found.system, found.difference, p_value))


def spread(values: Sequence[float]) -> float | None:
    """Return the standard deviation of a sample; None of fewer than two."""
    if len(values) < 2:
        return None
    mean = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


class TextComparer:
    """BLEU and chrF: sacrebleu's paired bootstrap (Koehn 2004) for one training a side."""

    def scorer(self, metric: str, runs: Sequence[Answers]) -> Scorer:
        """Return sacrebleu's score of samples of the sentences."""
        from phmctl.metrics.text import text_scorer

        return text_scorer(metric, [run.given for run in runs], runs[0].right, lowercase=runs[0].lowercase)

    def paired(self, metric: str, baseline: Answers, system: Answers) -> tuple[str, float]:
        """Compare by paired bootstrap."""
        from phmctl.metrics.text import paired_bootstrap

        found = paired_bootstrap(baseline.given, system.given, system.right, lowercase=system.lowercase)
        return "paired bootstrap", next(one.p_value for one in found if one.name == metric)


class LabelComparer:
    """Accuracy: McNemar's exact test for one training a side."""

    def scorer(self, metric: str, runs: Sequence[Answers]) -> Scorer:
        """Return the accuracy on samples of the examples, in per cent."""
        from phmctl.metrics.significance import accuracy_scorer

        return accuracy_scorer([list(map(str.__eq__, run.given, run.right)) for run in runs])

    def paired(self, metric: str, baseline: Answers, system: Answers) -> tuple[str, float]:
        """Compare by McNemar's test."""
        from phmctl.metrics.classification import mcnemar

        return "McNemar's exact test", mcnemar(baseline.given, system.given, system.right).p_value
