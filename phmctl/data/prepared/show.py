"""What people are shown of prepared text."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from phmctl.console import Table

Counts = Mapping[str, Any]  # of a split, as the manifest has them


def counts_table(
    title: str,
    splits: Mapping[str, Counts],
    dropped: Sequence[str],
    columns: Sequence[str],
    cells: Callable[[Counts], Iterable[str]],
) -> Table:
    """Return what was read, kept and dropped, a line a split.

    Args:
        title: of the table.
        splits: the counts of each split.
        dropped: the reasons for leaving something out, in the order of their columns.
        columns: what is told of a split beside.
        cells: returns those columns' cells.
    """
    noted = sorted({reason for counts in splits.values() for reason in counts["noted"]})
    titles = ["split", "read", *(f"− {_words(reason)}" for reason in dropped), "kept"]
    titles += [f"of it {_words(reason)}" for reason in noted]
    rows = [[name, *_counts(counts, dropped, noted), *cells(counts)] for name, counts in splits.items()]
    return Table(title, [*titles, *columns], rows)


def _counts(counts: Counts, dropped: Sequence[str], noted: Sequence[str]) -> Iterator[str]:
    yield f"{counts['read']:,}"
    yield from (f"{counts['dropped'].get(reason, 0):,}" for reason in dropped)
    yield f"{counts['kept']:,}"
    yield from (f"{counts['noted'].get(reason, 0):,}" for reason in noted)


def _words(reason: str) -> str:
    return reason.replace("_", " ")


def tokens_cell(counts: Mapping[str, int]) -> str:
    """Return how many tokens there are, and which share of them is unknown."""
    unknown = counts["unknown"] / max(counts["tokens"], 1)
    return f"{counts['tokens']:,}" + (f" ({unknown:.1%} unknown)" if unknown else "")


def preparation_table(manifest: Mapping[str, Any]) -> Table:
    """Return what was read, kept and dropped of parallel text, a line a split."""
    splits = manifest["splits"]
    return counts_table(
        f"{manifest['corpus']}: {_vocabulary(manifest)}",
        splits,
        sorted({reason for counts in splits.values() for reason in counts["dropped"]}),
        [f"{side} tokens" for side in (manifest["source_language"], manifest["target_language"])],
        lambda counts: (tokens_cell(counts[side]) for side in ("source", "target")),
    )


def _vocabulary(manifest: Mapping[str, Any]) -> str:
    settings, sizes = manifest["settings"], manifest["token_types"]
    if settings["joint"]:
        return f"joint {settings['tokenizer']} vocabulary of {sizes['source']:,}"
    return f"{settings['tokenizer']} vocabularies of {sizes['source']:,} and {sizes['target']:,}"
