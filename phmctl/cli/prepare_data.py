"""``phmctl prepare-data``: raw text to token ids on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phmctl.cli import prepare_options as own
from phmctl.cli.options import Copies, DataRoot, Json, Once, Reverse
from phmctl.errors import DataError, UserError

if TYPE_CHECKING:
    from phmctl.data.listing import Listed
    from phmctl.data.prepared.folder import PreparedData

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
        if ctx.params["listing"]:
            _refuse_with_list(ctx)
        return rest


def _refuse_with_list(ctx: Any) -> None:
    """Refuse (UserError) what has no part in the list of cards."""
    given = [each for each in ctx.command.params if ctx.get_parameter_source(each.name).name == "COMMANDLINE"]
    others = [each.opts[0] for each in given if each.name not in ("listing", "name", "data", "json")]
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
    name: own.Name = None,
    source: own.Source = None,
    recipe: own.Recipe = None,
    tokenizer: own.Tokenizer = None,
    vocabulary: own.Vocabulary = None,
    vocabulary_of: own.VocabularyOf = None,
    joint: own.Joint = None,
    reverse: Reverse = False,
    copies: Copies = False,
    max_tokens: own.MaxTokens = None,
    train: own.Train = None,
    valid: own.Valid = None,
    test: own.Test = None,
    columns: own.Columns = None,
    table: own.Table = None,
    text: own.Text = None,
    label: own.Label = None,
    quoting: own.Quoting = None,
    header: own.Header = None,
    extra: own.Extra = None,
    skip_bad_lines: own.SkipBadLines = False,
    lowercase: own.Lowercase = None,
    normalise: own.Normalise = None,
    entities: own.Entities = None,
    max_ratio: own.MaxRatio = None,
    min_count: own.MinCount = None,
    extra_split: own.ExtraSplit = None,
    vectors: own.Vectors = None,
    data: DataRoot = None,
    workers: Annotated[int, typer.Option(min=1, help="Number of tokenizer threads.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Prepare anew even if nothing has changed.")] = False,
    refetch: Annotated[bool, typer.Option("--refetch", help="Download the card's files again.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="List the dataset cards, or show that of NAME.")] = False,
    json: Json = False,
) -> None:
    """Clean and tokenize a corpus, once for all runs that use it."""
    if listing:
        _list(name, data, as_json=json)
        return
    from phmctl import verbs

    if name is None:
        raise DataError(
            "no corpus is named: phmctl prepare-data NAME\nphmctl prepare-data --list shows the dataset cards"
        )
    prepared = verbs.prepare(
        name,
        data=data,
        source=source,
        recipe=recipe,
        files=_grouped("train", train) | _grouped("valid", valid) | _grouped("test", test),
        vocabulary_of=vocabulary_of,
        workers=workers,
        force=force,
        refetch=refetch,
        quiet=False,
        tokenizer=tokenizer,
        vocabulary=vocabulary,
        joint=joint,
        max_tokens=max_tokens,
        direction="reverse" if reverse else None,
        copies=copies or None,
        lowercase=lowercase,
        normalise=normalise,
        entities=entities,
        max_ratio=max_ratio,
        min_count=min_count,
        columns=columns,
        table=table,
        text=text,
        label=label,
        quoting=quoting,
        header=header,
        extra=extra,
        skip_bad_lines=skip_bad_lines or None,
        extra_split=extra_split,
        vectors=vectors,
    )
    _show(prepared, as_json=json)


def _show(prepared: "PreparedData", *, as_json: bool) -> None:
    from phmctl.console import emit_json
    from phmctl.data.prepared.show import show_prepared

    if as_json:
        emit_json({"folder": str(prepared.folder), **prepared.manifest})
    else:
        show_prepared(prepared.manifest)


def _list(name: str | None, data: Path | None, *, as_json: bool) -> None:
    """Print the dataset cards, a table a task; or the one that is named."""
    from itertools import groupby

    from phmctl.console import emit_json, note, print_table
    from phmctl.data.listing import list_cards
    from phmctl.data.prepared.folder import data_root

    root = data or data_root()
    cards = list_cards(root, name)
    if as_json:
        emit_json({"data": str(root), "cards": [listed.as_json() for listed in cards]})
        return
    titles = ["name", "what", "train / valid / test", "licence", "from", "here"]
    for task, group in groupby(cards, key=lambda listed: listed.card.task):
        print_table(task, titles, map(_line, group), text=(1, 3, 4, 5))
    held = "* held out of train, as the publishers have none; " * any(listed.divided for listed in cards)
    note(f"{held}prepared data is in {root}")


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
