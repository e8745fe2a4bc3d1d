"""Scoring a classifier's run: accuracy with its interval, F1 by class, confusions, two runs by McNemar's test."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from phmctl.console import Table, progress, warn
from phmctl.data.copies import ADVICE, refuse_damaged_copy
from phmctl.data.corpus import table_rows
from phmctl.errors import DataError, RunError, UserError, nearest
from phmctl.files import write_atomic
from phmctl.metrics.classification import (
    Accuracy,
    ClassScore,
    McNemar,
    Value,
    accuracy,
    class_scores,
    confusion,
    mcnemar,
    part_name,
    parts,
)
from phmctl.metrics.degenerate import remarks
from phmctl.runs import Run, Weights
from phmctl.runs.results import Setting, write_result
from phmctl.tasks.answers import ONE_SEED, Answers, p_words, signed, within
from phmctl.tasks.base import Asked
from phmctl.tasks.classification.kind import rows_of
from phmctl.tasks.classification.predictor import WINDOW, TextClassifier, labels_of, load_classifier
from phmctl.tasks.model import Classified


@dataclass(frozen=True)
class Examples:
    """The examples of a split, as a run keeps them."""

    texts: list[tuple[str, ...]]  # the one or two texts of each, cleaned
    labels: list[str]  # what is right
    extras: Mapping[str, list[int]]  # other numbers of each, by name; -1 where they are not known

    def __len__(self) -> int:
        return len(self.labels)


def read_examples(run: Run, split: str) -> Examples:
    """Return the examples that a run keeps of a split. Raises RunError."""
    path = run.text_folder / f"{split}.jsonl"
    if not path.is_file():
        has = run.splits()
        raise RunError(
            f"{path} is missing: the run has no split {split!r}{nearest(split, has)}; it has {', '.join(has) or 'none'}"
        )
    refuse_damaged_copy(run, path)
    try:
        rows = [json.loads(line) for line in path.read_bytes().decode("utf-8").split("\n")[:-1]]
        names = [key for key in rows[0] if key not in ("texts", "label")] if rows else []
        return Examples(
            [tuple(row["texts"]) for row in rows],
            [row["label"] for row in rows],
            {name: [row[name] for row in rows] for name in names},
        )
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error!r}); {ADVICE}") from error


@dataclass(frozen=True)
class Group:
    """Accuracy on the examples of which an extra, such as the number of attractors, has one value, or one range."""

    value: Value
    accuracy: Accuracy


@dataclass(frozen=True)
class SplitScores:
    """What a classifier reaches on one split."""

    split: str  # its name
    labels: list[str]  # the classes
    accuracy: Accuracy  # the share of right answers, with its 95 % interval
    classes: list[ClassScore]  # precision, recall and F1 of each class
    confusion: list[list[int]]  # how often each class (row) was taken for each (column)
    groups: Mapping[str, list[Group]] = field(default_factory=dict)  # accuracy by the value of each extra
    majority: float = 0.0  # the share of the commonest label: what a classifier of one answer reaches
    macro_f1: float = 0.0  # the mean of the classes' F1
    compared: McNemar | None = None  # McNemar's test against the baseline, if there is one


@dataclass(frozen=True)
class ClassifierReport:
    """What ``eval`` found of a classifier."""

    run: str  # its name
    checkpoint: str  # the name of the checkpoint's folder
    splits: list[SplitScores]  # the split that was asked for, then its others (``test_mismatched`` beside ``test``)
    against: str | None = None  # the baseline's name

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    def tables(self) -> Iterator[Table]:
        for scores in self.splits:
            yield from _tables(f"{self.run}, {scores.split}, checkpoint {self.checkpoint}", scores, self.against)


def evaluate(asked: Asked) -> ClassifierReport:
    """Score a classifier on a split and on its others, and write scores and predictions into the run.

    Of a user's labelled table (its file, the columns of the text and the label) nothing is written.
    """
    run, split, against, given = asked.run, asked.split, asked.against, dict(asked.options)
    table: dict[str, Any] = {name: given.pop(name) for name in ("table", "text", "label") if name in given}
    examples = _read_table(run, table) if table else _kept(run, split, against)
    execution = given.get("execution")
    load = partial(load_classifier, device=asked.device, cleaned=not table, execution=execution)

    def answer(one: Run) -> tuple[Weights, dict[str, list[Classified]]]:
        weights, classifier = one.use(asked.checkpoint, lambda name: (one.weights(name), load(one, name)))
        return weights, _answers(one.name, classifier, examples)

    weights, answers = answer(run)
    rival = None if against is None else answer(against)
    labels = labels_of(run)
    results = [
        _score(name, labels, own, answers[name], None if rival is None else rival[1][name])
        for name, own in examples.items()
    ]
    report = ClassifierReport(run.name, weights.name, results, against.name if against else None)
    if table:
        return report
    setting = setting_of(split, weights, execution)
    paths = {name: replace(setting, split=name).path(run, "predictions.tsv") for name in examples}
    for name, own in examples.items():
        if len(set(own.labels)) > 1:
            for remark in remarks([" ".join(texts) for texts in own.texts], [each.label for each in answers[name]]):
                warn(f"{run.name}, {weights.name}, {name}: {remark}")
        write_predictions(paths[name], own, answers[name])
    first, *others = results
    figures = {"accuracy": first.accuracy.value, **{f"accuracy {one.split}": one.accuracy.value for one in others}}
    alone = replace(report, splits=[replace(one, compared=None) for one in results], against=None)
    write_result(run, setting, alone.as_json(), figures, answers=paths[split])
    if against is not None and rival is not None:
        write_result(run, setting.beside(against.name, rival[0]), report.as_json(), figures, against=against.name)
    return report


def _kept(run: Run, split: str, against: Run | None) -> dict[str, Examples]:
    """Return the run's examples of a split, and of its others (``test_mismatched``), which a baseline must share."""
    names = [split, *(name for name in run.splits() if name.startswith(f"{split}_"))]
    examples = {name: read_examples(run, name) for name in names}
    if against is not None:
        for name, own in examples.items():
            other = read_examples(against, name)
            if (other.texts, other.labels) != (own.texts, own.labels):
                raise RunError(f"{against.folder} has other {name} examples than {run.folder}; scores do not compare")
    return examples


def _read_table(run: Run, table: Mapping[str, Any]) -> dict[str, Examples]:
    """Return a user's examples, under the file's name. Raises DataError: it cannot be read, or has an unknown label."""
    if "table" not in table:
        raise UserError("--text and --label are columns of a table: give it with --table FILE")
    path, labels = Path(table["table"]), labels_of(run)
    found = list(table_rows("--table", path, rows_of(table), None, skip=False))
    for row in found:
        if row.label not in labels:
            raise DataError(f"{row.named()}: {run.name} knows no label {row.label!r}; it has {', '.join(labels)}")
    if not found:
        raise DataError(f"{path} holds no example")
    return {path.name: Examples([row.texts for row in found], [row.label or "" for row in found], {})}


def setting_of(split: str, weights: Weights, execution: str | None = None) -> Setting:
    """Return what decides the result of :func:`evaluate`."""
    return Setting(split, weights, {} if execution is None else {"execution": execution}, execution or "")


def _answers(name: str, classifier: TextClassifier, examples: Mapping[str, Examples]) -> dict[str, list[Classified]]:
    """Return the answer of a run's classifier to each example of each split."""
    answers: dict[str, list[Classified]] = {split: [] for split in examples}
    for split, own in examples.items():
        with progress(f"labelling {split} with {name}", len(own)) as advance:
            for start in range(0, len(own), 8 * WINDOW):
                texts = own.texts[start : start + 8 * WINDOW]
                answers[split] += classifier.label(texts)
                advance(len(texts))
    return answers


def _score(
    split: str,
    labels: list[str],
    examples: Examples,
    answers: Sequence[Classified],
    baseline: Sequence[Classified] | None,
) -> SplitScores:
    given = [answer.label for answer in answers]
    classes = class_scores(given, examples.labels, labels)
    return SplitScores(
        split,
        labels,
        accuracy(given, examples.labels),
        classes,
        confusion(given, examples.labels, labels),
        {
            name: [
                Group(value, accuracy([given[row] for row in rows], [examples.labels[row] for row in rows]))
                for value, rows in parts(values)
            ]
            for name, values in examples.extras.items()
        },
        max(each.support for each in classes) / len(examples),
        sum(each.f1 for each in classes) / len(classes),
        None if baseline is None else mcnemar([answer.label for answer in baseline], given, examples.labels),
    )


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


def read_predictions(path: Path) -> Answers:
    """Read what :func:`evaluate` wrote of a split's predictions. Raises RunError."""
    try:
        head, *rows = (line.split("\t") for line in path.read_text(encoding="utf-8").split("\n")[:-1])
        columns = dict(zip(head, zip(*rows, strict=True), strict=True))
        texts = [columns[name] for name in ("text", "first", "second") if name in columns]
        known = ("label", "predicted", "probability", "text", "first", "second")
        groups = {name: [int(value) for value in values] for name, values in columns.items() if name not in known}
        asked = [" ⇒ ".join(parts) for parts in zip(*texts, strict=True)]
        return Answers(asked, columns["label"], columns["predicted"], groups)
    except (OSError, ValueError, KeyError) as error:
        raise RunError(f"{path} is damaged: {error}; remove it and score the run anew") from error


# ------------------------------------------------------------------------------------------------ for the screen


def _tables(title: str, scores: SplitScores, against: str | None) -> Iterator[Table]:
    classes, columns = scores.classes, ["class", "examples", "precision", "recall", "F1"]
    rows: list[Sequence[object]]
    rows = [(one.label, f"{one.support:,}", *map(_percent, (one.precision, one.recall, one.f1))) for one in classes]
    yield Table(f"{title}: {scores.accuracy.total:,} examples", columns, rows)
    columns = ["examples", "correct", "accuracy %"]
    cells = *_accuracy_cells(scores.accuracy), _percent(scores.macro_f1), _percent(scores.majority)
    yield Table("all examples (95 % interval)", [*columns, "macro-F1", "commonest label"], [cells])
    for name, groups in scores.groups.items():
        rows = [(part_name(one.value), *_accuracy_cells(one.accuracy)) for one in groups]
        yield Table(f"accuracy by {name}", [name, *columns], rows)
    rows = [(label, *row) for label, row in zip(scores.labels, scores.confusion, strict=True)]
    yield Table("confusion: label (row), prediction (column)", ["", *scores.labels], rows)
    if (one := scores.compared) is not None:
        columns = ["difference", "only baseline correct", "only this run correct", "p"]
        tested = f"{signed(100 * one.difference)} %", one.only_baseline, one.only_system, p_words(one.p_value)
        yield Table(f"McNemar's exact test against {against}; {ONE_SEED}", columns, [tested])


def _accuracy_cells(one: Accuracy) -> tuple[str, ...]:
    return f"{one.total:,}", f"{one.right:,}", within(100 * one.value, 100 * one.lower, 100 * one.upper)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %"
