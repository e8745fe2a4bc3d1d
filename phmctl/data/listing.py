"""What people are shown of corpora: the cards, which of them are prepared, and the counts of a preparation."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phmctl.console import Table
from phmctl.data.card import card_names, load_card


def list_cards(root: Path, name: str | None = None) -> list[dict[str, Any]]:
    """Return what is told of the shipped cards, by task and then by name, or of the one named.

    `root` has raw and prepared data: ``prepared`` are a card's folders, one for each tokenizer setting, and ``fetched``
    says whether something of it lies in the cache of downloads. ``origins`` are asked in their order.
    """
    listed = []
    for card in sorted(map(load_card, [name] if name else card_names()), key=lambda card: (card.task, card.id)):
        manifests = (root / "prepared" / card.id).glob("[!.]*/manifest.json")  # only what is complete has such a name
        listed.append(
            {
                "name": card.id,
                **card.model_dump(include={"title", "task", "labels", "sizes", "licence"}),
                "languages": [] if card.labelled else [card.source_language, card.target_language],
                "texts": card.texts or 0,
                "origins": ["built in"] if card.built_in else list(card.ways or ("local",)),
                "divided": list(card.divide.places if card.divide else ()),
                "fetched": any((root / "raw" / card.id).glob("[!.]*")),
                "prepared": sorted(path.parent.name for path in manifests),
            }
        )
    return listed


def prepared_table(manifest: Mapping[str, Any]) -> Table:
    """Return each split's counts, as the manifest has them."""
    splits = manifest["splits"]
    labelled = "labels" in manifest
    sides = ("text",) if labelled else ("source", "target")
    dropped = list(dict.fromkeys(reason for counts in splits.values() for reason in counts["dropped"]))
    noted = sorted({reason for counts in splits.values() for reason in counts["noted"]})
    titles = ["split", "read", *(f"− {reason}" for reason in dropped), "kept"]
    titles += [f"kept, {reason}" for reason in noted]
    titles += ["commonest label"] if labelled else []
    titles += [f"{manifest.get(f'{side}_language', '')} tokens".strip() for side in sides]
    rows = []
    for name, counts in splits.items():
        numbers = [counts["read"], *(counts["dropped"].get(reason, 0) for reason in dropped), counts["kept"]]
        numbers += [counts["noted"].get(reason, 0) for reason in noted]
        row = [name, *(f"{number:,}" for number in numbers)]
        if labelled:
            label = max(counts["labels"], key=counts["labels"].__getitem__)
            row.append(f"{label} {counts['labels'][label] / counts['kept']:.1%}")
        for side in sides:
            tokens, unknown = counts[side]["tokens"], counts[side]["unknown"] / max(counts[side]["tokens"], 1)
            row.append(f"{tokens:,}" + (f" ({unknown:.1%} unknown)" if unknown else ""))
        rows.append(row)
    return Table(f"{manifest['corpus']}: {_title(manifest)}", [title.replace("_", " ") for title in titles], rows)


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
