"""What people are shown of prepared labelled text."""

from collections.abc import Iterator, Mapping
from typing import Any

from phmctl.console import note
from phmctl.data.labelled.store import coverage_of
from phmctl.data.prepared.show import Counts, counts_table, tokens_cell


def show_labelled(manifest: Mapping[str, Any]) -> None:
    """Print what was read, kept and dropped, a line a split, and how much of the text has a word vector."""
    splits = manifest["splits"]
    dropped = list(dict.fromkeys(reason for counts in splits.values() for reason in counts["dropped"]))
    counts_table(_title(manifest), splits, dropped, ("commonest label", "tokens"), _cells).show()
    if coverage := coverage_of(manifest):
        note(coverage)


def _title(manifest: Mapping[str, Any]) -> str:
    labels = manifest["labels"]
    classes = ", ".join(labels) if len(labels) <= 6 else f"{len(labels)} labels"
    texts = "pairs" if manifest["texts"] == 2 else "texts"
    kind, size = manifest["settings"]["tokenizer"], manifest["token_types"]["text"]
    return f"{manifest['corpus']}: {texts}; {classes}; {kind} vocabulary of {size:,}"


def _cells(counts: Counts) -> Iterator[str]:
    label = max(counts["labels"], key=counts["labels"].__getitem__)
    yield f"{label} {counts['labels'][label] / counts['kept']:.1%}"
    yield tokens_cell(counts["text"])
