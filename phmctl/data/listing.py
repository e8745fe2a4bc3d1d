"""What corpora there are by name, and which of them are prepared."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
    """Return the shipped cards, by task and then by name, or the one named; `root` has raw and prepared data.

    Raises:
        DataError: a card is not valid, or there is none of this name.
    """
    cards = sorted(map(load_card, [name] if name else card_names()), key=lambda card: (card.task, card.id))
    return [Listed(card, _prepared(root / "prepared" / card.id), _fetched(root / "raw" / card.id)) for card in cards]


def _fetched(folder: Path) -> bool:
    return any(folder.glob("[!.]*"))


def _prepared(folder: Path) -> tuple[str, ...]:
    """Return the settings that are prepared: a folder takes its name only when it is complete."""
    found = folder.glob("*/manifest.json")
    return tuple(sorted(path.parent.name for path in found if not path.parent.name.startswith(".")))
