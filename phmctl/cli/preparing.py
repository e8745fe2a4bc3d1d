"""The output of ``prepare-data``: a prepared corpus, or the list of dataset cards."""

from itertools import groupby
from operator import itemgetter
from typing import Any

from phmctl.console import Shown, Table
from phmctl.data.card import list_cards
from phmctl.data.prepared import PreparedData, data_root, prepared_table

SPLITS = ("train", "valid", "test")


def prepared_output(prepared: PreparedData) -> Shown:
    document = {"folder": str(prepared.folder), **prepared.manifest}
    notes = [prepared.coverage] if prepared.coverage else []
    return Shown(document, [prepared_table(prepared.manifest)], notes=notes)


def card_list(name: str | None, data: str | None) -> Shown:
    """List the shipped cards, or the card with this name."""
    root = data_root(data)
    cards = list_cards(root, name)
    titles = ["name", "what", "train / valid / test", "licence", "from", "here"]
    tables = [
        Table(task, titles, [_card_cells(card) for card in group], text=(1, 3, 4, 5))
        for task, group in groupby(cards, key=itemgetter("task"))
    ]
    note = f"prepared data is in {root}"
    if any(card["divided"] for card in cards):
        note = f"* held out of train, because the publishers have no such split; {note}"
    return Shown({"data": str(root), "cards": cards}, tables, notes=[note])


def _card_cells(card: dict[str, Any]) -> list[str]:
    """Return the row of a card in the list of cards."""
    texts = "pair" if card["texts"] == 2 else "text"
    content = " → ".join(card["languages"]) or f"{texts} → {len(card['labels']) or '?'}"
    sizes = []
    for split in SPLITS:
        if split in card["sizes"]:
            mark = "*" if split in card["divided"] else ""
            sizes.append(f"{card['sizes'][split]:,}{mark}")
    licence = card["licence"].partition(" (")[0].partition(",")[0].removesuffix(" by the publishers")
    state = "not fetched"
    if card["prepared"]:
        state = "prepared"
    elif card["fetched"]:
        state = "fetched"
    elif not {"hub", "urls"} & {*card["origins"]}:  # local files only
        state = "–"
    return [card["name"], content, " / ".join(sizes) or "not known", licence, ", ".join(card["origins"]), state]
