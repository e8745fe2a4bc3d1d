"""``phmctl prepare-data``: raw text to token ids on disk."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phmctl.cli.options import DataRoot, Json, Reverse, complete_card, complete_recipe
from phmctl.cli.prepare_labelled import (
    ExtraSplit,
    Header,
    Label,
    Quoting,
    Table,
    Text,
    Vectors,
)
from phmctl.errors import DataError

if TYPE_CHECKING:
    from phmctl.data.listing import Listed

_Files = tuple[Path, Path]


def prepare_data(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="A dataset card, or a name for your own files.",
            autocompletion=complete_card,
            show_default=False,
        ),
    ] = None,
    source: Annotated[
        Path | None, typer.Option(help="Folder with the card's files; without it they are downloaded.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(
            help="Take the settings below from this recipe, not from the card.", autocompletion=complete_recipe
        ),
    ] = None,
    tokenizer: Annotated[str | None, typer.Option(help="bpe or word.")] = None,
    vocabulary: Annotated[int | None, typer.Option(help="Token types, a side if separate.")] = None,
    joint: Annotated[
        bool | None, typer.Option("--joint/--separate", help="Translation: one vocabulary for both sides, or one each.")
    ] = None,
    reverse: Reverse = False,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest text kept in train, in tokens; in translation with the end of sentence.")
    ] = None,
    train: Annotated[_Files | None, typer.Option(metavar="SRC TGT", help="Your own training files.")] = None,
    valid: Annotated[_Files | None, typer.Option(metavar="SRC TGT", help="Your own validation files.")] = None,
    test: Annotated[_Files | None, typer.Option(metavar="SRC TGT", help="Your own test files.")] = None,
    table: Table = None,
    text: Text = None,
    label: Label = None,
    quoting: Quoting = None,
    header: Header = None,
    extra_split: ExtraSplit = None,
    vectors: Vectors = None,
    data: DataRoot = None,
    workers: Annotated[int, typer.Option(min=1, help="Threads of the tokenizer.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Prepare anew even if nothing has changed.")] = False,
    refetch: Annotated[bool, typer.Option("--refetch", help="Download the card's files again.")] = False,
    listing: Annotated[bool, typer.Option("--list", help="Show the dataset cards, and do nothing else.")] = False,
    json: Json = False,
) -> None:
    """Clean and tokenize a corpus, once for all runs that use it."""
    if listing:
        _list(data, as_json=json)
        return
    from phmctl import verbs
    from phmctl.console import emit_json
    from phmctl.tasks.registry import kind_for_corpus

    if name is None:
        raise DataError(
            "no corpus is named: phmctl prepare-data NAME\nphmctl prepare-data --list shows the dataset cards"
        )
    named = {"train": train, "valid": valid, "test": test}
    settings = {"tokenizer": tokenizer, "vocabulary": vocabulary, "joint": joint, "max_tokens": max_tokens}
    settings |= {"direction": "reverse"} if reverse else {}
    files = {split: pair for split, pair in named.items() if pair is not None}
    labelled: dict[str, object] = {"table": table, "text": text, "label": label, "quoting": quoting, "header": header}
    labelled |= {"extra_split": extra_split, "vectors": vectors}
    prepared = verbs.prepare(
        name,
        data=data,
        source=source,
        recipe=recipe,
        files=files,
        workers=workers,
        force=force,
        refetch=refetch,
        quiet=False,
        **settings,
        **labelled,
    )
    if json:
        emit_json({"folder": str(prepared.folder), **prepared.manifest})
    else:
        given = [key for key, value in labelled.items() if value not in (None, [])]
        kind_for_corpus(name, recipe, [*files, *given]).show_prepared(prepared.manifest)


def _list(data: Path | None, *, as_json: bool) -> None:
    """Print the dataset cards, a table a task."""
    from itertools import groupby

    from phmctl.console import emit_json, note, print_table
    from phmctl.data.listing import list_cards
    from phmctl.data.prepared.folder import data_root

    root = data or data_root()
    cards = list_cards(root)
    if as_json:
        emit_json({"data": str(root), "cards": [card.as_json() for card in cards]})
        return
    titles = ["name", "what", "train / valid / test", "licence", "from", "prepared"]
    for task, group in groupby(cards, key=lambda card: card.task):
        print_table(task, titles, [_line(card) for card in group], text=(1, 3, 4, 5))
    note(f"* held out of train, as the publishers have none; what is prepared lies in {root}")


def _line(card: "Listed") -> list[str]:
    shown = [split for split in ("train", "valid", "test") if split in card.sizes]
    sizes = (f"{card.sizes[split]:,}{'*' * (split in card.divided)}" for split in shown)
    licence = card.licence.partition(" (")[0].partition(",")[0].removesuffix(" by the publishers")
    prepared = "yes" if card.prepared else "no"
    slash, comma = (" / ", ", ") if card.languages else ("/", ",\n")  # the names of the others are longer
    columns = [card.name, _what(card), slash.join(sizes) or "not known"]
    return [*columns, licence, comma.join(card.origins), prepared]


def _what(card: "Listed") -> str:
    """Return from what to what; so that the table has 100 columns at most, over two lines where it is long."""
    if card.languages:
        arrow = " → " if max(map(len, card.languages)) < 4 else " →\n"
        return arrow.join(card.languages)
    return f"{'pair' if card.texts == 2 else 'text'} → {len(card.labels) or '?'}"
