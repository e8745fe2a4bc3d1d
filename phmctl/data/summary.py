"""What people are shown of prepared parallel text."""

from collections.abc import Iterator, Mapping
from typing import Any

from phmctl.console import Table


def preparation_table(manifest: Mapping[str, Any]) -> Table:
    """Return what was read, kept and dropped, a line a split."""
    splits = manifest["splits"]
    dropped = sorted({reason for counts in splits.values() for reason in counts["dropped"]})
    noted = sorted({reason for counts in splits.values() for reason in counts["noted"]})
    titles = ["split", "read", *(f"− {_words(reason)}" for reason in dropped), "kept"]
    titles += [f"of it {_words(reason)}" for reason in noted]
    titles += [f"{side} tokens" for side in (manifest["source_language"], manifest["target_language"])]
    return Table(
        f"{manifest['corpus']}: {_vocabulary(manifest)}",
        titles,
        [[name, *_cells(counts, dropped, noted)] for name, counts in splits.items()],
    )


def _cells(counts: Mapping[str, Any], dropped: list[str], noted: list[str]) -> Iterator[str]:
    yield f"{counts['read']:,}"
    yield from (f"{counts['dropped'].get(reason, 0):,}" for reason in dropped)
    yield f"{counts['kept']:,}"
    yield from (f"{counts['noted'].get(reason, 0):,}" for reason in noted)
    for side in ("source", "target"):
        unknown = counts[side]["unknown"] / max(counts[side]["tokens"], 1)
        yield f"{counts[side]['tokens']:,}" + (f" ({unknown:.1%} unknown)" if unknown else "")


def _vocabulary(manifest: Mapping[str, Any]) -> str:
    settings, sizes = manifest["settings"], manifest["token_types"]
    if settings["joint"]:
        return f"joint {settings['tokenizer']} vocabulary of {sizes['source']:,}"
    return f"{settings['tokenizer']} vocabularies of {sizes['source']:,} and {sizes['target']:,}"


def _words(reason: str) -> str:
    return reason.replace("_", " ")
