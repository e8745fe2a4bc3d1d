"""What runs answered on a split, and how the answers of several are compared; each task says how it has them."""

from __future__ import annotations  # commands ask kinds of tasks: numpy is imported when something is compared

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

from phmctl.metrics.classification import Part, mcnemar
from phmctl.metrics.text import ScoreOptions, bleu_by, length_parts, sentence_chrf, text_scorer

if TYPE_CHECKING:
    from phmctl.metrics.significance import Difference, Scorer


def within(value: float, low: float, high: float, form: str = ".2f") -> str:
    """Return a figure with its 95 % interval as every table shows them: ``34.77 (33.51 to 36.02)``."""
    return f"{value:{form}} ({low:{form}} to {high:{form}})".replace("-", "−")


def signed(difference: float) -> str:
    return f"{difference:+.2f}".replace("-", "−")


def p_words(p_value: float) -> str:
    return f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"


@dataclass(frozen=True)
class Metric:
    name: str  # in a result's scores
    scale: float = 1.0  # what it is multiplied by to be shown: 100 makes a share per cent
    higher: bool = True  # whether a larger one is better
    tested: bool = False  # whether differences are tested


@dataclass(frozen=True)
class Answers:
    asked: Sequence[str]  # the text of each item
    right: Sequence[str]  # its reference, or label
    given: Sequence[str]  # the answer
    # numbers of the items by which scores are broken down (attractors), by name; -1 is not known
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)
    how: ScoreOptions = field(default_factory=dict)  # type: ignore[assignment]  # of text: how it is scored


ONE_SEED = "one seed each: valid for these two trainings only"


class TextComparer:
    """How translations are compared: by BLEU and chrF, and the paired bootstrap (Koehn 2004)."""

    figure, own = "BLEU", "words of the source"  # of a breakdown: what it shows, and by what it divides first

    def scorer(self, metric: str, runs: Sequence[Answers]) -> Scorer:
        """Return what scores a model's trainings on samples of the items."""
        return text_scorer(metric, [run.given for run in runs], runs[0].right, **runs[0].how)

    def paired(self, found: Difference, baseline: Answers, system: Answers) -> tuple[str, float]:
        """Return the name and p of the task's own test of one training a side; `found` is what the bootstrap found."""
        return "paired bootstrap", found.p_value

    def item_scores(self, run: Answers) -> list[float]:
        """Return a score of each item by itself, in per cent: by these, samples are chosen."""
        return sentence_chrf(run.given, run.right, lowercase=run.how.get("lowercase", False))

    def divided(self, run: Answers) -> list[Part]:
        """Return the items of each part, as the task divides them."""
        return length_parts(run.asked)

    def scores(self, run: Answers, parts: Sequence[Part]) -> list[float]:
        return [one.bleu for one in bleu_by(parts, run.given, run.right, **run.how)]


class LabelComparer:
    """How labels are compared: by accuracy, and McNemar's exact test; else as :class:`TextComparer`."""

    figure, own = "accuracy (%)", "label"

    def scorer(self, metric: str, runs: Sequence[Answers]) -> Scorer:
        from phmctl.metrics.significance import accuracy_scorer

        return accuracy_scorer([list(map(str.__eq__, run.given, run.right)) for run in runs])

    def paired(self, found: Difference, baseline: Answers, system: Answers) -> tuple[str, float]:
        return "McNemar's exact test", mcnemar(baseline.given, system.given, system.right).p_value

    def item_scores(self, run: Answers) -> list[float]:
        return [100.0 * (given == right) for given, right in zip(run.given, run.right, strict=True)]

    def divided(self, run: Answers) -> list[Part]:
        return [(label, [row for row, own in enumerate(run.right) if own == label]) for label in sorted({*run.right})]

    def scores(self, run: Answers, parts: Sequence[Part]) -> list[float]:
        each = self.item_scores(run)
        return [math.fsum(each[row] for row in rows) / len(rows) for _, rows in parts]


Comparer: TypeAlias = TextComparer | LabelComparer
