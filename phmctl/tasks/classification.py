"""The tasks ``classification`` (texts or pairs of texts) and ``probing`` (only counted here).

``eval`` writes the report (``.json``) and the predicted labels (``.predictions.tsv``) into a run's ``results/``.
"""

from __future__ import annotations  # torch is imported by the functions that need it

import csv
import io
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from phmctl.answering.opening import Source
from phmctl.console import Table, progress
from phmctl.data.card import RowFormat, labelled_format
from phmctl.data.corpus import table_rows
from phmctl.errors import DataError, RunError, UserError
from phmctl.metrics import classification as scoring
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection
from phmctl.recipe.schema import ClassificationRecipe, ProbingRecipe
from phmctl.runs import AUTO
from phmctl.runs.copies import load_labels, read_text
from phmctl.runs.results import Result, ScoringKey, write_record, write_result
from phmctl.tasks.base import (
    Answering,
    Answers,
    LabelComparer,
    Metric,
    Sizes,
    Task,
    TaskSpec,
    Trains,
    text_sizes,
    within,
)

if TYPE_CHECKING:
    from phmctl.answering.classifier import Classified, Classifier

_SHOWN_LABELS = 12  # more labels make the table of confusions too wide for a terminal
_PROBED_WIDTH = 512  # width of the vectors for parameter counts of a probe, without an encoder


@dataclass(frozen=True)
class Examples:
    """Labelled examples of a split or a table."""

    texts: list[tuple[str, ...]]  # one or two cleaned texts of each example
    labels: list[str]
    extras: Mapping[str, list[int]]  # further numbers of each example by name, -1 if not known


def read_examples(run: Source, split: str) -> Examples:
    """Return a split of the run's own examples. Raises RunError, and DataError if there are none."""
    rows = [json.loads(line) for line in read_text(run, split, "jsonl")]
    if not rows:
        raise DataError(f"split {split!r} of {run.name} has no examples")
    names = [key for key in rows[0] if key not in ("texts", "label")]
    return Examples(
        [tuple(row["texts"]) for row in rows],
        [row["label"] for row in rows],
        {name: [row[name] for row in rows] for name in names},
    )


def read_table(run: Source, path: Path, table_format: RowFormat) -> Examples:
    """Return the examples of a table. Raises DataError if it cannot be read or has a label that the run lacks."""
    labels = load_labels(run)
    rows = list(table_rows(path, table_format))
    for row in rows:
        if row.label not in labels:
            raise DataError(
                f"{row.location}: {run.name} has no label {row.label or ''!r}; its labels are {', '.join(labels)}"
            )
    if not rows:
        raise DataError(f"{path} has no examples")
    return Examples([row.texts for row in rows], [row.label or "" for row in rows], {})


def write_predictions(path: Path, examples: Examples, predictions: Sequence[Classified]) -> None:
    """Write a row for each example, quoted as in CSV: label, predicted label, probability, extras, texts."""
    names = [*examples.extras]
    is_pair = bool(examples.texts) and len(examples.texts[0]) == 2
    rows = [("label", "predicted", "probability", *names, *(("first", "second") if is_pair else ("text",)))]
    for row, prediction in enumerate(predictions):
        extras = [str(examples.extras[name][row]) for name in names]
        texts = [" ".join(text.split()) for text in examples.texts[row]]
        rows.append((examples.labels[row], prediction.label, f"{prediction.probability:.6f}", *extras, *texts))
    content = io.StringIO()
    csv.writer(content, delimiter="\t", lineterminator="\n").writerows(rows)
    write_record(path, content.getvalue())


def read_predicted(path: Path) -> list[str]:
    """Return the predicted labels of a file that :func:`write_predictions` has written."""
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file, delimiter="\t")
    return [row[1] for row in rows]


@dataclass(frozen=True)
class Group:
    """Accuracy on the examples with one value, or range of values, of an extra such as the number of attractors."""

    value: scoring.Value
    accuracy: scoring.Accuracy


@dataclass(frozen=True)
class ClassifierReport:
    run: str  # name of the run
    split: str  # ``test`` or ``valid``, a named test set, or the name of a table
    checkpoint: str  # name of the checkpoint's folder
    labels: list[str]  # classes
    accuracy: scoring.Accuracy  # with the 95 % interval
    classes: list[scoring.ClassScore]  # precision, recall and F1 of each class
    confusion: list[list[int]]  # number of examples by class (row) and prediction (column)
    groups: Mapping[str, list[Group]]  # accuracy by the values of each extra
    majority: float  # fraction of the most frequent label: the accuracy of a constant answer
    macro_f1: float  # mean F1 of the classes

    def as_json(self) -> dict[str, object]:
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


def evaluate(
    run: Source,
    split: str = "test",
    checkpoint: str = AUTO,
    device: str = "auto",
    *,
    table: Path | str | None = None,
    text: Sequence[str] | None = None,
    label: str | None = None,
) -> ClassifierReport:
    """Score a classifier, and write scores and predictions into the run unless a table is scored.

    `table` holds labelled examples to score instead of a split, with the columns `text` and `label`.

    Raises RunError, DataError, UserError.
    """
    labels = load_labels(run)
    columns = {name: value for name, value in (("text", text), ("label", label)) if value is not None}
    if table is not None:
        examples, name = read_table(run, Path(table), labelled_format(text, label)), Path(table).name
    elif columns:
        raise UserError("text and label are columns of a table: give the table too")
    else:
        examples, name = read_examples(run, split), split

    chosen = run.chosen(checkpoint)
    weights, classifier = run.weights(chosen), load(run, chosen, device, cleaned=table is None)
    if len(examples.texts[0]) != classifier.texts:
        found = len(examples.texts[0])
        raise UserError(
            f"{run.name} reads {classifier.texts} texts an example, not {found}: name other columns as text"
        )
    with progress(f"labelling with {run.name}", len(examples.texts)) as advance:
        predictions = classifier.label(examples.texts, advance)
    predicted = [prediction.label for prediction in predictions]
    report = report_of(run.name, name, weights.name, labels, examples, predicted)
    if table is None:
        key = ScoringKey(split, weights, {})
        path = key.path(run, "predictions.tsv")
        write_predictions(path, examples, predictions)
        write_result(run, key, report.as_json(), path)
    return report


def scored_answers(run: Source, result: Result) -> Answers | None:
    """Return the scored labels of a result. Raises RunError."""
    if result.answers is None:
        return None
    examples = read_examples(run, result.split)
    predicted = read_predicted(result.answers)
    if len(predicted) != len(examples.labels):
        lines = f"{len(predicted):,} labels for {len(examples.labels):,} examples"
        raise RunError(f"{result.answers} has {lines}: run phmctl eval again")
    return Answers([" ⇒ ".join(texts) for texts in examples.texts], examples.labels, predicted, examples.extras)


def load(
    run: Source, checkpoint: str = AUTO, device: str = "auto", *, cleaned: bool = False, threads: int = 0
) -> Classifier:
    from phmctl.answering.classifier import load_classifier

    return load_classifier(run, checkpoint, device, cleaned=cleaned, threads=threads)


def open_data(recipe: ClassificationRecipe, data: Path) -> Task:
    from phmctl.data.prepared import PreparedData
    from phmctl.tasks.classification_training import ClassificationTask

    return ClassificationTask(recipe, PreparedData.find(recipe.data, data))


def notes(section: EncoderClassifierSection | PairClassifierSection, sizes: Mapping[str, int]) -> Iterator[str]:
    yield f"the map to the classes is counted for {sizes['classes']} of them"
    if isinstance(section, PairClassifierSection) and section.embeddings != "trained":
        yield "the embedding is trained if the data has no vectors, otherwise it is fixed"


CLASSIFICATION = TaskSpec(
    name="classification",
    commands=("prepare-data", "train", "eval", "decode", "count-params", "bench train"),
    sizes=partial(text_sizes, names=("vocabulary", "classes"), words="{:,} token types and {:,} classes", classes=2),
    tables=lambda sizes: {"embedding": sizes["vocabulary"]},
    notes=notes,
    trains=Trains(
        open=open_data,
        evaluate=evaluate,
        options=("table", "text", "label"),
        metrics=(Metric("accuracy", scale=100, tested=True),),
        comparer=LabelComparer(),
        scored_answers=scored_answers,
    ),
    answers=Answering(load=load),
)


def probe_sizes(recipe: ProbingRecipe, data: Path | None = None) -> Sizes:
    from phmctl.data.prepared import trained_sizes

    trained = None if data is None else trained_sizes(recipe.data, data)
    classes = 2 if trained is None else trained[1]
    return Sizes({"width": _PROBED_WIDTH, "classes": classes}, f"vectors {_PROBED_WIDTH} wide, {classes} classes")


PROBING = TaskSpec(  # its models are probes, not runs: ``probe`` (:mod:`phmctl.probes`) trains them
    name="probing",
    commands=("probe RUN", "count-params"),
    sizes=probe_sizes,
    notes=lambda section, sizes: (
        f"the probe of vectors {sizes['width']} wide, without the encoder that computes them",
    ),
)
