"""The labels and the examples of a classification run, and tables in place of a split."""

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl.data.card import RowFormat
from phmctl.data.corpus import table_rows
from phmctl.decoding.model import Classified
from phmctl.errors import DataError, RunError
from phmctl.files import write_atomic
from phmctl.runs import DATA, Run
from phmctl.runs.copies import ADVICE, read_text
from phmctl.tasks.text import row_format


@dataclass(frozen=True)
class Examples:
    """Labelled examples of a split or a table."""

    texts: list[tuple[str, ...]]  # one or two cleaned texts of each example
    labels: list[str]
    extras: Mapping[str, list[int]]  # further numbers of each example, by name; -1: not known


def labels_of(run: Run) -> list[str]:
    """Return the label set of a run. Raises RunError."""
    labels: list[str] | None = run.data().get("labels")
    if not labels:
        raise RunError(f"{run.folder / DATA} does not list the labels; {ADVICE}")
    return labels


def read_examples(run: Run, split: str) -> Examples:
    """Return a split of the run's own examples. Raises RunError."""
    rows = [json.loads(line) for line in read_text(run, split, "jsonl")]
    names = [key for key in rows[0] if key not in ("texts", "label")] if rows else []
    return Examples(
        [tuple(row["texts"]) for row in rows],
        [row["label"] for row in rows],
        {name: [row[name] for row in rows] for name in names},
    )


def labelled_format(options: Mapping[str, Any]) -> RowFormat:
    """Return the format of labelled tables. Raises DataError if a column is missing or named twice."""
    texts = options.get("text") or ()
    label = options.get("label")
    if not 1 <= len(texts) <= 2 or label is None:
        raise DataError("tables need --text COLUMN (once, or twice for pairs) and --label COLUMN")
    return row_format("--text and --label", texts, label, options)


def read_table(run: Run, path: Path, table_format: RowFormat) -> Examples:
    """Return the examples of a table. Raises DataError if it cannot be read or has a label that the run lacks."""
    labels = labels_of(run)
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
    """Write a row for each example: label, predicted label and its probability, extras, texts; quoted as in CSV."""
    names = [*examples.extras]
    is_pair = bool(examples.texts) and len(examples.texts[0]) == 2
    rows = [("label", "predicted", "probability", *names, *(("first", "second") if is_pair else ("text",)))]
    for row, prediction in enumerate(predictions):
        extras = [str(examples.extras[name][row]) for name in names]
        texts = [" ".join(text.split()) for text in examples.texts[row]]
        rows.append((examples.labels[row], prediction.label, f"{prediction.probability:.6f}", *extras, *texts))
    content = io.StringIO()
    csv.writer(content, delimiter="\t", lineterminator="\n").writerows(rows)
    write_atomic(path, content.getvalue())


def read_predicted(path: Path) -> list[str]:
    """Return the predicted labels of a file that :func:`write_predictions` has written."""
    with path.open(encoding="utf-8", newline="") as file:
        _, *rows = csv.reader(file, delimiter="\t")
    return [row[1] for row in rows]
