"""What people are shown of corpora: the cards, which of them are prepared, and the counts of a preparation."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl.console import Table, note
from phmctl.data.card import Card, card_names, load_card


@dataclass(frozen=True)
class Listed:
    """A card in the list, and the names of its prepared folders, one for each tokenizer setting."""

    card: Card
    prepared: tuple[str, ...]
    fetched: bool = False  # something of it lies in the cache of downloads

    @property
    def languages(self) -> tuple[str, ...]:
        return () if self.card.labelled else (self.card.source_language, self.card.target_language)

    @property
    def origins(self) -> tuple[str, ...]:
        """Where the text can come from, in the order in which they are asked; at worst from ``--source DIR`` alone."""
        return ("built in",) if self.card.built_in else self.card.ways or ("local",)

    @property
    def here(self) -> str:
        if self.prepared:
            return "prepared"
        return "fetched" if self.fetched else "never tried" if self.card.ways else "–"

    @property
    def divided(self) -> tuple[str, ...]:
        made = dict.fromkeys(split for layout in self.card.local for split in layout.makes)
        return tuple(self.card.divide.places if self.card.divide else made)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.card.id,
            **self.card.model_dump(include={"title", "task", "labels", "sizes", "licence"}),
            "languages": self.languages,
            "texts": self.card.texts or 0,
            "origins": self.origins,
            "divided": self.divided,
            "fetched": self.fetched,
            "prepared": self.prepared,
        }


def list_cards(root: Path, name: str | None = None) -> list[Listed]:
    """Return the shipped cards, by task and then by name, or the one named; `root` has raw and prepared data."""
    listed = []
    for card in sorted(map(load_card, [name] if name else card_names()), key=lambda card: (card.task, card.id)):
        manifests = (root / "prepared" / card.id).glob("[!.]*/manifest.json")  # only what is complete has such a name
        fetched = any((root / "raw" / card.id).glob("[!.]*"))
        listed.append(Listed(card, tuple(sorted(path.parent.name for path in manifests)), fetched))
    return listed


def show_prepared(manifest: Mapping[str, Any]) -> None:
    """Show each split's counts, as the manifest has them, and what word vectors cover."""
    splits = manifest["splits"]
    labelled = "labels" in manifest
    dropped = list(dict.fromkeys(reason for counts in splits.values() for reason in counts["dropped"]))
    dropped = dropped if labelled else sorted(dropped)
    noted = sorted({reason for counts in splits.values() for reason in counts["noted"]})
    titles = ["split", "read", *(f"− {reason}" for reason in dropped), "kept"]
    titles += [f"kept, {reason}" for reason in noted]
    titles += ["commonest label"] if labelled else []
    titles += [f"{manifest.get(f'{side}_language', '')} tokens".strip() for side in _sides(manifest)]
    rows = []
    for name, counts in splits.items():
        numbers = [counts["read"], *(counts["dropped"].get(reason, 0) for reason in dropped), counts["kept"]]
        numbers += [counts["noted"].get(reason, 0) for reason in noted]
        row = [name, *(f"{number:,}" for number in numbers)]
        if labelled:
            label = max(counts["labels"], key=counts["labels"].__getitem__)
            row.append(f"{label} {counts['labels'][label] / counts['kept']:.1%}")
        for side in _sides(manifest):
            tokens, unknown = counts[side]["tokens"], counts[side]["unknown"] / max(counts[side]["tokens"], 1)
            row.append(f"{tokens:,}" + (f" ({unknown:.1%} unknown)" if unknown else ""))
        rows.append(row)
    Table(f"{manifest['corpus']}: {_title(manifest)}", [title.replace("_", " ") for title in titles], rows).show()
    if coverage := coverage_of(manifest):
        note(coverage)


def _sides(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    return ("text",) if "labels" in manifest else ("source", "target")


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
