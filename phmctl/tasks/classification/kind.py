"""Classification, as the commands know it: labelled text, and a classifier's scores.

The scores are accuracy with its interval, F1 by class, confusions, and McNemar's test of two runs.
"""

from __future__ import annotations  # what a method works with is imported in it: comparing and preparing want no torch

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import Table, progress, warn
from phmctl.data.card import RowFormat
from phmctl.data.copies import ADVICE, read_text
from phmctl.data.corpus import table_rows
from phmctl.decoding.model import Classified
from phmctl.errors import DataError, RunError, UserError
from phmctl.files import write_atomic
from phmctl.metrics import classification as scoring
from phmctl.metrics.text import remarks
from phmctl.recipe.models import PairClassifierSection
from phmctl.recipe.schema import ClassificationRecipe, LabelledSection
from phmctl.runs import DATA, Run, Weights
from phmctl.runs.results import Result, ScoringKey, write_result
from phmctl.tasks.answers import ONE_SEED, Answers, LabelComparer, Metric, p_words, signed, within
from phmctl.tasks.base import Asked
from phmctl.tasks.own import TABLES, TAKEN, TextKind, rows_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from phmctl.assembly import ClassifierSection
    from phmctl.tasks.classification.task import TextClassifier

_SHOWN = 12  # labels of which a terminal can show the confusions; JSON has all


class ClassificationKind(TextKind[ClassificationRecipe]):
    """Labels for texts or pairs of texts: accuracy, one vocabulary."""

    recipe, section = ClassificationRecipe, LabelledSection
    task = "phmctl.tasks.classification.task:ClassificationTask"
    sides, found, classes = ("vocabulary", "classes"), "{:,} token types and {:,} classes", 2
    labelled, takes = True, (*TAKEN, "table", "text", "label", *TABLES, "vectors")
    way = "--table SPLIT=FILE --text COLUMN --label COLUMN"
    corpus_options = ("table",)
    eval_options = ("table", "text", "label")
    metrics = (Metric("accuracy", scale=100, tested=True),)
    comparer = LabelComparer()

    def own_files(
        self, files: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], RowFormat | None, dict[str, Any]]:
        tables: dict[str, Any] = {}
        for value in options.get("table") or ():
            split, _, path = value.partition("=")
            if not (split and path) or split in tables:
                twice = f"{split} is given twice" if split in tables else f"{value}: wants SPLIT=FILE"
                raise DataError(f"--table {twice}")
            tables[split] = [[Path(path)]]
        return tables, labelled_rows(options) if tables else None, {}

    def build(
        self, settings: ClassifierSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> nn.Module:
        from phmctl.assembly import build_classifier

        return build_classifier(settings, sizes["vocabulary"], sizes["classes"], device=device)

    def load(self, asked: Asked) -> TextClassifier:
        from phmctl.tasks.classification.task import load_classifier

        how = {"cleaned": asked.own_text, "threads": asked.threads, **asked.options}
        return load_classifier(asked.run, asked.checkpoint, asked.device, **how)

    def split_lines(self, run: Run, split: str) -> list[str]:
        return ["\t".join(text.replace("\t", " ") for text in texts) for texts in read_examples(run, split).texts]

    def evaluate(self, asked: Asked) -> ClassifierReport:
        """Score a classifier on a split, and write scores and predictions into the run; of a user's table nothing."""
        run, split, against, labels = asked.run, asked.split, asked.against, labels_of(asked.run)
        table = {name: asked.options[name] for name in ("table", "text", "label") if name in asked.options}
        examples = _read_table(run, labels, table) if table else read_examples(run, split)
        texts, right = examples.texts, examples.labels
        if against is not None and not table:
            other = read_examples(against, split)
            if (other.texts, other.labels) != (texts, right):
                raise RunError(f"{against.folder} has other {split} examples than {run.folder}; scores do not compare")
        weights, answers = _answers(run, asked, texts, cleaned=not table)
        given = [each.label for each in answers]
        classes = scoring.class_scores(given, right, labels)

        def group(value: scoring.Value, rows: Sequence[int]) -> Group:
            return Group(value, scoring.accuracy([given[row] for row in rows], [right[row] for row in rows]))

        report = ClassifierReport(
            run.name,
            Path(table["table"]).name if table else split,
            weights.name,
            labels,
            scoring.accuracy(given, right),
            classes,
            scoring.confusion(given, right, labels),
            {name: [group(*part) for part in scoring.parts(values)] for name, values in examples.extras.items()},
            majority=max(each.support for each in classes) / len(right),
            macro_f1=sum(each.f1 for each in classes) / len(classes),
        )
        setting = ScoringKey(split, weights, {})
        if not table:
            for remark in remarks([" ".join(each) for each in texts], given) if len({*right}) > 1 else ():
                warn(f"{run.name}, {weights.name}, {split}: {remark}")
            write_predictions(setting.path(run, "predictions.tsv"), examples, answers)
            write_result(run, setting, report.as_json(), setting.path(run, "predictions.tsv"))
        if against is None:
            return report
        theirs, rival = _answers(against, asked, texts, cleaned=not table)
        compared = scoring.mcnemar([each.label for each in rival], given, right)
        report = replace(report, against=against.name, compared=compared)
        if not table:
            write_result(run, setting.against(against.name, theirs), report.as_json())
        return report

    def answers(self, run: Run, result: Result) -> Answers | None:
        if result.answers is None:
            return None
        examples = read_examples(run, result.split)
        rows = result.answers.read_text(encoding="utf-8").split("\n")[1:-1]
        asked, given = [" ⇒ ".join(texts) for texts in examples.texts], [row.split("\t")[1] for row in rows]
        return Answers(asked, examples.labels, given, examples.extras)

    def notes(self, settings: ClassifierSection, sizes: Mapping[str, int]) -> Iterator[str]:
        yield f"the map to the classes is counted for {sizes['classes']} of them"
        if isinstance(settings, PairClassifierSection) and settings.embeddings != "trained":
            yield "the embedding is trained where the data has no vectors, and ready and fixed where it has"

    def tables(self, settings: ClassifierSection, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"embedding": sizes["vocabulary"]}


KIND = ClassificationKind()


def labels_of(run: Run) -> list[str]:
    labels: list[str] | None = run.data().get("labels")
    if not labels:
        raise RunError(f"{run.folder / DATA} does not say which labels there are; {ADVICE}")
    return labels


def labelled_rows(given: Mapping[str, Any]) -> RowFormat:
    """Return how labelled tables are read. Raises DataError: a column is missing, or named twice."""
    text, label = given.get("text") or (), given.get("label")
    if not 1 <= len(text) <= 2 or label is None:
        raise DataError("tables want --text COLUMN (once, or twice for pairs) and --label COLUMN")
    return rows_of("--text and --label", text, label, given)


@dataclass(frozen=True)
class Examples:
    """The examples of a split, as a run keeps them."""

    texts: list[tuple[str, ...]]  # the one or two texts of each, cleaned
    labels: list[str]  # what is right
    extras: Mapping[str, list[int]]  # other numbers of each, by name; -1 where they are not known


def read_examples(run: Run, split: str) -> Examples:
    """Return the examples that a run keeps of a split. Raises RunError."""
    rows = [json.loads(line) for line in read_text(run, split, "jsonl")]
    names = [key for key in rows[0] if key not in ("texts", "label")] if rows else []
    return Examples(
        [tuple(row["texts"]) for row in rows],
        [row["label"] for row in rows],
        {name: [row[name] for row in rows] for name in names},
    )


@dataclass(frozen=True)
class Group:
    """Accuracy on the examples of which an extra, such as the number of attractors, has one value, or one range."""

    value: scoring.Value
    accuracy: scoring.Accuracy


@dataclass(frozen=True)
class ClassifierReport:
    run: str  # its name
    split: str  # ``test`` or ``valid``, a named test set, or the name of a table
    checkpoint: str  # the name of the checkpoint's folder
    labels: list[str]  # the classes
    accuracy: scoring.Accuracy  # the share of right answers, with its 95 % interval
    classes: list[scoring.ClassScore]  # precision, recall and F1 of each class
    confusion: list[list[int]]  # how often each class (row) was taken for each (column)
    groups: Mapping[str, list[Group]]  # accuracy by the value of each extra
    majority: float  # the share of the commonest label: what a classifier of one answer reaches
    macro_f1: float  # the mean of the classes' F1
    against: str | None = None  # the baseline's name
    compared: scoring.McNemar | None = None  # McNemar's test against it

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def tables(self) -> Iterator[Table]:
        columns = ["class", "examples", "precision", "recall", "F1"]
        rows: list[Sequence[object]] = []
        for each in self.classes:
            rows.append((each.label, f"{each.support:,}", *map(_percent, (each.precision, each.recall, each.f1))))
        about = f"{self.run}, {self.split}, checkpoint {self.checkpoint}: {self.accuracy.total:,} examples"
        yield Table(about, columns, rows)
        columns = ["examples", "correct", "accuracy %"]
        cells = *_cells(self.accuracy), _percent(self.macro_f1), _percent(self.majority)
        yield Table("all examples (95 % interval)", [*columns, "macro-F1", "commonest label"], [cells])
        for name, groups in self.groups.items():
            rows = [(scoring.part_name(group.value), *_cells(group.accuracy)) for group in groups]
            yield Table(f"accuracy by {name}", [name, *columns], rows)
        rows = [(label, *row) for label, row in zip(self.labels, self.confusion, strict=True)]
        if len(self.labels) <= _SHOWN:
            yield Table("confusion: label (row), prediction (column)", ["", *self.labels], rows)
        if (one := self.compared) is not None:
            columns = ["difference", "only baseline correct", "only this run correct", "p"]
            tested = f"{signed(100 * one.difference)} %", one.only_baseline, one.only_system, p_words(one.p_value)
            yield Table(f"McNemar's exact test against {self.against}; {ONE_SEED}", columns, [tested])


def _cells(one: scoring.Accuracy) -> tuple[str, ...]:
    return f"{one.total:,}", f"{one.right:,}", within(100 * one.value, 100 * one.lower, 100 * one.upper)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"


def _read_table(run: Run, labels: Sequence[str], table: Mapping[str, Any]) -> Examples:
    """Return a user's examples. Raises DataError: the table cannot be read, or has an unknown label."""
    if "table" not in table:
        raise UserError("--text and --label are columns of a table: give it with --table FILE")
    found = list(table_rows(Path(table["table"]), labelled_rows(table)))
    for row in found:
        if row.label not in labels:
            raise DataError(
                f"{row.location}: {run.name} knows no label {row.label or ''!r}; it has {', '.join(labels)}"
            )
    if not found:
        raise DataError(f"{table['table']} holds no example")
    return Examples([row.texts for row in found], [row.label or "" for row in found], {})


def _answers(
    run: Run, asked: Asked, texts: Sequence[tuple[str, ...]], *, cleaned: bool
) -> tuple[Weights, list[Classified]]:
    from phmctl.tasks.classification.task import load_classifier

    def load(name: str) -> tuple[Weights, TextClassifier]:
        return run.weights(name), load_classifier(run, name, asked.device, cleaned=cleaned)

    weights, classifier = run.use(asked.checkpoint, load)
    if len(texts[0]) != classifier.texts:
        raise UserError(f"{run.name} reads {classifier.texts} texts an example, not {len(texts[0])}; see --text")
    with progress(f"labelling with {run.name}", len(texts)) as advance:
        return weights, classifier.label(texts, advance)


def write_predictions(path: Path, examples: Examples, answers: Sequence[Classified]) -> None:
    """Write a row an example: what is right, what was predicted and how sure, the extras, the texts."""
    names = [*examples.extras]
    sides = ("text",) if not examples.texts or len(examples.texts[0]) == 1 else ("first", "second")
    rows = [("label", "predicted", "probability", *names, *sides)]
    for row, answer in enumerate(answers):
        extras = (str(examples.extras[name][row]) for name in names)
        texts = (" ".join(text.split()) for text in examples.texts[row])
        rows.append((examples.labels[row], answer.label, f"{answer.probability:.6f}", *extras, *texts))
    write_atomic(path, "".join("\t".join(row) + "\n" for row in rows))
