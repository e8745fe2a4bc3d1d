"""What corpora there are by name, and which of them are prepared."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phmctl.data.card import Card, card_names, load_card


@dataclass(frozen=True)
class Listed:
    """A card in the list.

    Attributes:
        name: the card's id.
        title: what it is.
        task: what is learned from it.
        languages: the source and the target side; empty for labelled text.
        texts: how many texts an example of labelled text has; 0 for translation.
        labels: the classes; empty for translation, and where only the files tell.
        sizes: published pairs or rows a split; empty where they are not known.
        licence: as the card states it.
        origins: where the text can come from: ``built in``, ``hub``, ``urls``, in the order in which they are asked;
            ``local`` where there is only ``--source DIR``.
        divided: the splits that are held out of train, since the publishers have none.
        prepared: the names of the prepared folders, one for each tokenizer setting.
    """

    name: str
    title: str
    task: str
    languages: tuple[str, ...]
    texts: int
    labels: tuple[str, ...]
    sizes: dict[str, int]
    licence: str
    origins: tuple[str, ...]
    divided: tuple[str, ...]
    prepared: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the entry as plain values."""
        return asdict(self)


def list_cards(root: Path) -> list[Listed]:
    """Return the shipped cards, by task and then by name.

    Args:
        root: the folder for raw and prepared data.

    Raises:
        DataError: a card is not valid.
    """
    cards = [_listed(load_card(name), root) for name in card_names()]
    return sorted(cards, key=lambda card: (card.task, card.name))


def _listed(card: Card, root: Path) -> Listed:
    return Listed(
        name=card.id,
        title=card.title,
        task=card.task,
        languages=() if card.labelled else (card.source_language, card.target_language),
        texts=card.texts or 0,
        labels=card.labels,
        sizes=dict(card.sizes),
        licence=card.licence,
        origins=_origins(card),
        divided=_divided(card),
        prepared=_prepared(root / "prepared" / card.id),
    )


def _divided(card: Card) -> tuple[str, ...]:
    if any(layout.by_text or layout.shuffled for layout in card.local):
        return ("valid", "test")
    return tuple(card.divide.places) if card.divide else ()


def _origins(card: Card) -> tuple[str, ...]:
    if card.built_in:
        return ("built in",)
    return card.ways or ("local",)


def _prepared(folder: Path) -> tuple[str, ...]:
    """Return the settings that are prepared: a folder takes its name only when it is complete."""
    found = folder.glob("*/manifest.json")
    return tuple(sorted(path.parent.name for path in found if not path.parent.name.startswith(".")))
