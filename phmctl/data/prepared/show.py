"""What people are shown of prepared text."""

from collections.abc import Iterator, Mapping
from typing import Any

from phmctl.console import Table, note

Counts = Mapping[str, Any]  # of a split, as the manifest has them


def show_prepared(manifest: Mapping[str, Any]) -> None:
    preparation_table(manifest).show()
    if coverage := coverage_of(manifest):
        note(coverage)


def preparation_table(manifest: Mapping[str, Any]) -> Table:
    splits = manifest["splits"]
    labelled = "labels" in manifest
    dropped = list(dict.fromkeys(reason for counts in splits.values() for reason in counts["dropped"]))
    dropped = dropped if labelled else sorted(dropped)
    noted = sorted({reason for counts in splits.values() for reason in counts["noted"]})
    titles = ["split", "read", *(f"− {_words(reason)}" for reason in dropped), "kept"]
    titles += [f"kept, {_words(reason)}" for reason in noted]
    if labelled:
        titles += ["commonest label", "tokens"]
    else:
        titles += [f"{manifest[side]} tokens" for side in ("source_language", "target_language")]
    rows = [[name, *_counts(counts, dropped, noted), *_cells(counts)] for name, counts in splits.items()]
    return Table(f"{manifest['corpus']}: {_title(manifest)}", titles, rows)


def _counts(counts: Counts, dropped: list[str], noted: list[str]) -> Iterator[str]:
    yield f"{counts['read']:,}"
    yield from (f"{counts['dropped'].get(reason, 0):,}" for reason in dropped)
    yield f"{counts['kept']:,}"
    yield from (f"{counts['noted'].get(reason, 0):,}" for reason in noted)


def _cells(counts: Counts) -> Iterator[str]:
    if "labels" in counts:
        label = max(counts["labels"], key=counts["labels"].__getitem__)
        yield f"{label} {counts['labels'][label] / counts['kept']:.1%}"
    for side in ("source", "target", "text"):
        if side in counts:
            tokens, unknown = counts[side]["tokens"], counts[side]["unknown"] / max(counts[side]["tokens"], 1)
            yield f"{tokens:,}" + (f" ({unknown:.1%} unknown)" if unknown else "")


def _words(reason: str) -> str:
    return reason.replace("_", " ")


def _title(manifest: Mapping[str, Any]) -> str:
    kind, sizes = manifest["settings"]["tokenizer"], manifest["token_types"]
    if "labels" in manifest:
        labels = manifest["labels"]
        classes = ", ".join(labels) if len(labels) <= 6 else f"{len(labels)} labels"
        texts = "pairs" if manifest["texts"] == 2 else "texts"
        return f"{texts}; {classes}; {kind} vocabulary of {sizes['text']:,}"
    if manifest["settings"]["joint"]:
        return f"joint {kind} vocabulary of {sizes['source']:,}"
    return f"{kind} vocabularies of {sizes['source']:,} and {sizes['target']:,}"


def coverage_of(manifest: Mapping[str, Any]) -> str:
    vectors = manifest.get("vectors")
    if not vectors:
        return ""
    tokens = ", ".join(f"{share:.1%} of {split}" for split, share in vectors["tokens"].items())
    return (
        f"{vectors['width']}-dimensional vectors of {vectors['file']} for {vectors['covered']:,} of "
        f"{vectors['types']:,} token types; of the tokens {tokens}"
    )
