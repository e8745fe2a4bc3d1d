"""The answers of runs on a split, and the comparison of several runs' answers."""

from __future__ import annotations  # numpy is imported when runs are compared

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import TYPE_CHECKING, TypeAlias

from phmctl.metrics.classification import Part, mcnemar
from phmctl.metrics.text import ScoreOptions, bleu_by, length_parts, sentence_chrf, text_scorer

if TYPE_CHECKING:
    from phmctl.metrics.significance import Difference, Scorer


def within(value: float, low: float, high: float, form: str = ".2f") -> str:
    """Return a figure with its 95 % interval in the form of all tables: ``34.77 (33.51 to 36.02)``."""
    return f"{value:{form}} ({low:{form}} to {high:{form}})".replace("-", "−")


def signed(difference: float) -> str:
    return f"{difference:+.2f}".replace("-", "−")


def p_words(p_value: float) -> str:
    return f"{p_value:.3f}" if p_value >= 0.001 else "< 0.001"


@dataclass(frozen=True)
class Metric:
    name: str  # key in the scores of a result
    scale: float = 1.0  # factor applied for display; 100 turns a fraction into per cent
    higher: bool = True  # whether larger scores are better
    tested: bool = False  # whether differences are tested


@dataclass(frozen=True)
class Answers:
    texts: Sequence[str]  # input of each item
    references: Sequence[str]  # reference, or label
    outputs: Sequence[str]
    groups: Mapping[str, Sequence[int]] = field(default_factory=dict)  # numbers for breakdowns; -1: not known
    score_options: ScoreOptions = field(default_factory=ScoreOptions)  # of translations


ONE_SEED = "one seed each: valid for these two trainings only"


class TextComparer:
    """Compare translations by BLEU, chrF and the paired bootstrap (Koehn 2004)."""

    score_name = "BLEU"  # of a breakdown
    part_name = "words of the source"

    def scorer(self, metric: str, runs: Sequence[Answers]) -> Scorer:
        """Return a function that scores a model's trainings on samples of the items."""
        return text_scorer(metric, [run.outputs for run in runs], runs[0].references, **runs[0].score_options)

    def paired_test(self, bootstrap: Difference, baseline: Answers, system: Answers) -> tuple[str, float]:
        """Return the name and the p-value of the task's test of two trainings."""
        return "paired bootstrap", bootstrap.p_value

    def item_scores(self, run: Answers) -> list[float]:
        """Return the score of each item in per cent, for choosing samples."""
        lowercase = run.score_options.get("lowercase", False)
        return sentence_chrf(run.outputs, run.references, lowercase=lowercase)

    def parts(self, run: Answers) -> list[Part]:
        """Return the items of each part of the task's own breakdown."""
        return length_parts(run.texts)

    def scores(self, run: Answers, parts: Sequence[Part]) -> list[float]:
        return [part.bleu for part in bleu_by(parts, run.outputs, run.references, **run.score_options)]


class LabelComparer:
    """Compare labels by accuracy and McNemar's exact test; see :class:`TextComparer` for the methods."""

    score_name = "accuracy (%)"
    part_name = "label"

    def scorer(self, metric: str, runs: Sequence[Answers]) -> Scorer:
        from phmctl.metrics.significance import accuracy_scorer

        return accuracy_scorer([[score > 0 for score in self.item_scores(run)] for run in runs])

    def paired_test(self, bootstrap: Difference, baseline: Answers, system: Answers) -> tuple[str, float]:
        return "McNemar's exact test", mcnemar(baseline.outputs, system.outputs, system.references).p_value

    def item_scores(self, run: Answers) -> list[float]:
        return [100.0 * (output == label) for output, label in zip(run.outputs, run.references, strict=True)]

    def parts(self, run: Answers) -> list[Part]:
        rows: dict[str, list[int]] = {label: [] for label in sorted(set(run.references))}
        for row, label in enumerate(run.references):
            rows[label].append(row)
        return list(rows.items())

    def scores(self, run: Answers, parts: Sequence[Part]) -> list[float]:
        scores = self.item_scores(run)
        return [fmean(scores[row] for row in rows) for _, rows in parts]


Comparer: TypeAlias = TextComparer | LabelComparer
