"""``phmctl prepare-data``: raw text to token ids on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.cli.build import Once
from phmctl.console import Shown
from phmctl.errors import DataError, UserError

if TYPE_CHECKING:
    from phmctl.data.listing import Listed

_SPLITS = ("train", "valid", "test")
_BETWEEN = "\0"  # the files of one --train, which the command line cannot have


class PrepareCommand(Once):
    """Takes ``--train`` and the like with a source and a target file, or with one table of both."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``--train SRC TGT`` as an option of one value; raises UserError."""
        waiting, found = list(args), list[str]()
        while waiting:
            found.append(waiting.pop(0))
            if found[-1] in [f"--{split}" for split in _SPLITS] and waiting:
                value = [waiting.pop(0)]
                value += [waiting.pop(0)] if waiting and not waiting[0].startswith("-") else []
                found.append(_BETWEEN.join(value))
        rest = super().parse_args(ctx, found)
        if ctx.params["list_"]:
            _refuse_with_list(ctx)
        return rest


def _refuse_with_list(ctx: Any) -> None:
    """Refuse (UserError) what has no part in the list of cards."""
    given = [each for each in ctx.command.params if ctx.get_parameter_source(each.name).name == "COMMANDLINE"]
    others = [each.opts[0] for each in given if each.name not in ("list_", "name", "data", "json")]
    if others:
        raise UserError(f"{', '.join(others)} {'have' if others[1:] else 'has'} no part in --list: leave one out")


def _grouped(split: str, values: list[str] | None) -> dict[str, list[tuple[str, ...]]]:
    """Return the files of a split's option by split; ``--test news=FILE`` is of the split ``test_news``."""
    groups: dict[str, list[tuple[str, ...]]] = {}
    for value in values or ():
        first, *rest = value.split(_BETWEEN)
        name, equals, path = first.partition("=")
        named = equals and "/" not in name and not Path(first).exists()
        groups.setdefault(f"{split}_{name}" if named else split, []).append((path if named else first, *rest))
    return groups


def prepare_data(
    name: str | None,
    data: Path | None,
    *,
    train: list[str] | None,
    valid: list[str] | None,
    test: list[str] | None,
    reverse: bool,
    copies: bool,
    list_: bool,
    **given: Any,
) -> Shown:
    """Clean and tokenize a corpus, once for all runs that use it."""
    if list_:
        return _list(name, data)
    from phmctl import verbs
    from phmctl.data.prepared.show import show_prepared

    if name is None:
        raise DataError(
            "no corpus is named: phmctl prepare-data NAME\nphmctl prepare-data --list shows the dataset cards"
        )
    files = _grouped("train", train) | _grouped("valid", valid) | _grouped("test", test)
    given |= {"direction": "reverse" if reverse else None, "copies": copies or None}
    given["skip_bad_lines"] = given["skip_bad_lines"] or None
    prepared = verbs.prepare(name, data=data, files=files, quiet=False, **given)
    document = {"folder": str(prepared.folder), **prepared.manifest}
    return Shown(document, draw=lambda: show_prepared(prepared.manifest))


def _list(name: str | None, data: Path | None) -> Shown:
    """Show the dataset cards, a table a task; or the one that is named."""
    from itertools import groupby

    from phmctl.console import Table
    from phmctl.data.listing import list_cards
    from phmctl.data.prepared.folder import data_root

    root = data or data_root()
    cards = list_cards(root, name)
    titles = ["name", "what", "train / valid / test", "licence", "from", "here"]
    grouped = groupby(cards, key=lambda listed: listed.card.task)
    tables = [Table(task, titles, [*map(_line, group)], text=(1, 3, 4, 5)) for task, group in grouped]
    held = "* held out of train, as the publishers have none; " * any(listed.divided for listed in cards)
    document = {"data": str(root), "cards": [listed.as_json() for listed in cards]}
    return Shown(document, tables, notes=[f"{held}prepared data is in {root}"])


def _line(listed: "Listed") -> list[str]:
    card = listed.card
    shown = [split for split in ("train", "valid", "test") if split in card.sizes]
    sizes = (f"{card.sizes[split]:,}{'*' * (split in listed.divided)}" for split in shown)
    licence = card.licence.partition(" (")[0].partition(",")[0].removesuffix(" by the publishers")
    columns = [card.id, _what(listed), " / ".join(sizes) or "not known"]
    return [*columns, licence, ", ".join(listed.origins), listed.here]


def _what(listed: "Listed") -> str:
    """Return from what to what."""
    if listed.languages:
        return " → ".join(listed.languages)
    return f"{'pair' if listed.card.texts == 2 else 'text'} → {len(listed.card.labels) or '?'}"
