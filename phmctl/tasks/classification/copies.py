"""What a classifier's run keeps of its data: the tokenizer, and the examples of each split but train as JSON lines."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from phmctl.data.copies import ADVICE, record_copies, refuse_damaged_copy
from phmctl.data.prepared.folder import PreparedData, Split
from phmctl.data.tokenizer import JOINT_FILE
from phmctl.errors import RunError, nearest
from phmctl.files import write_atomic
from phmctl.runs import DATA, Run


@dataclass(frozen=True)
class Examples:
    """The examples of a split, as a run keeps them."""

    texts: list[tuple[str, ...]]  # the one or two texts of each, cleaned
    labels: list[str]  # what is right
    extras: Mapping[str, list[int]]  # other numbers of each, by name; -1 where they are not known

    def __len__(self) -> int:
        return len(self.labels)


def write_copies(run: Run, prepared: PreparedData) -> None:
    """Write tokenizer, examples of the evaluation splits and manifest into a new run. Raises OutputError."""
    prepared.tokenizer.save(run.tokenizer_folder / JOINT_FILE)
    for name in prepared.splits:
        if name != "train":
            write_atomic(run.text_folder / f"{name}.jsonl", _as_lines(prepared.split(name), prepared.labels))
    record_copies(run, prepared.manifest)


def _as_lines(split: Split, labels: list[str]) -> str:
    numbers = [] if split.labels is None else split.labels.tolist()
    extras = {name: values.tolist() for name, values in split.extras.items()}
    lines = []
    for row, (texts, number) in enumerate(zip(zip(*split.texts, strict=True), numbers, strict=True)):
        example = {"texts": texts, "label": labels[number], **{name: values[row] for name, values in extras.items()}}
        lines.append(json.dumps(example, ensure_ascii=False) + "\n")
    return "".join(lines)


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


def labels_of(run: Run) -> list[str]:
    labels = run.data().get("labels")
    if not isinstance(labels, list) or not labels or not all(isinstance(label, str) for label in labels):
        raise RunError(f"{run.folder / DATA} does not say which labels there are; {ADVICE}")
    return labels
