"""The report of a classifier's scores: accuracy with its interval, F1 by class, confusions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phmctl.console import Table
from phmctl.errors import DataError, UserError
from phmctl.metrics import classification as scoring
from phmctl.tasks.answers import within
from phmctl.tasks.base import ScoreRequest
from phmctl.tasks.classification.examples import Examples

_SHOWN_LABELS = 12  # more labels make the table of confusions too wide for a terminal; JSON has all


@dataclass(frozen=True, kw_only=True)
class ClassifierScoreRequest(ScoreRequest):
    """A request to score a classifier."""

    table: Path | str | None = None  # labelled examples in place of a split
    text: list[str] | None = None  # columns of the texts
    label: str | None = None  # column of the label

    def table_options(self) -> dict[str, Any]:
        """Return the columns of the table; raise UserError if they are given without a table."""
        columns = {"text": self.text, "label": self.label}
        options = {name: value for name, value in columns.items() if value is not None}
        if options and self.table is None:
            raise UserError("--text and --label are columns of a table: give it with --table FILE")
        return options


@dataclass(frozen=True)
class Group:
    """Accuracy on the examples with one value, or range of values, of an extra such as the number of attractors."""

    value: scoring.Value
    accuracy: scoring.Accuracy


@dataclass(frozen=True)
class ClassifierReport:
    run: str  # its name
    split: str  # ``test`` or ``valid``, a named test set, or the name of a table
    checkpoint: str  # name of the checkpoint's folder
    labels: list[str]  # classes
    accuracy: scoring.Accuracy  # with its 95 % interval
    classes: list[scoring.ClassScore]  # precision, recall and F1 of each class
    confusion: list[list[int]]  # number of examples by class (row) and prediction (column)
    groups: Mapping[str, list[Group]]  # accuracy by the values of each extra
    majority: float  # fraction of the most frequent label: the accuracy of a constant answer
    macro_f1: float  # mean F1 of the classes

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def tables(self) -> Iterator[Table]:
        columns = ["class", "examples", "precision", "recall", "F1"]
        rows: list[Sequence[object]] = []
        for score in self.classes:
            figures = map(_percent, (score.precision, score.recall, score.f1))
            rows.append((score.label, f"{score.support:,}", *figures))
        title = f"{self.run}, {self.split}, checkpoint {self.checkpoint}: {self.accuracy.total:,} examples"
        yield Table(title, columns, rows)
        columns = ["examples", "correct", "accuracy %"]
        cells = (*_cells(self.accuracy), _percent(self.macro_f1), _percent(self.majority))
        yield Table("all examples (95 % interval)", [*columns, "macro-F1", "commonest label"], [cells])
        for name, groups in self.groups.items():
            rows = [(scoring.part_name(group.value), *_cells(group.accuracy)) for group in groups]
            yield Table(f"accuracy by {name}", [name, *columns], rows)
        if len(self.labels) <= _SHOWN_LABELS:
            rows = [(label, *row) for label, row in zip(self.labels, self.confusion, strict=True)]
            yield Table("confusion: label (row), prediction (column)", ["", *self.labels], rows)


def _cells(accuracy: scoring.Accuracy) -> tuple[str, ...]:
    interval = within(100 * accuracy.value, 100 * accuracy.lower, 100 * accuracy.upper)
    return f"{accuracy.total:,}", f"{accuracy.right:,}", interval


def _percent(fraction: float) -> str:
    return f"{100 * fraction:.2f} %"


def report_of(
    run: str, split: str, checkpoint: str, labels: list[str], examples: Examples, predictions: Sequence[str]
) -> ClassifierReport:
    """Return the scores of predicted labels."""
    truth = examples.labels
    if not truth:
        raise DataError(f"{split} has no examples")
    classes = scoring.class_scores(predictions, truth, labels)
    groups: dict[str, list[Group]] = {}
    for name, values in examples.extras.items():
        groups[name] = []
        for value, rows in scoring.parts(values):
            accuracy = scoring.accuracy([predictions[row] for row in rows], [truth[row] for row in rows])
            groups[name].append(Group(value, accuracy))
    return ClassifierReport(
        run,
        split,
        checkpoint,
        labels,
        scoring.accuracy(predictions, truth),
        classes,
        scoring.confusion(predictions, truth, labels),
        groups,
        majority=max(score.support for score in classes) / len(truth),
        macro_f1=sum(score.f1 for score in classes) / len(classes),
    )
