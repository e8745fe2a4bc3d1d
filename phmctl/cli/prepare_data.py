"""``phmctl prepare-data``: raw text to token ids on disk."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phmctl.cli.options import DataRoot, Json, complete_card, complete_recipe
from phmctl.cli.prepare_labelled import (
    ExtraSplit,
    Header,
    Label,
    LabelledOptions,
    Quoting,
    Table,
    Text,
    Vectors,
    prepare_labelled_named,
    show_labelled,
)
from phmctl.errors import DataError

if TYPE_CHECKING:
    from phmctl.data.labelled import LabelledData
    from phmctl.data.listing import Listed
    from phmctl.data.store import PreparedData

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
    listing: Annotated[bool, typer.Option("--list", help="Show the dataset cards, and do nothing else.")] = False,
    json: Json = False,
) -> None:
    """Clean and tokenize a corpus, once for all runs that use it."""
    if listing:
        _list(data, as_json=json)
        return
    from phmctl.console import emit_json
    from phmctl.data.store import data_root

    if name is None:
        raise DataError(
            "no corpus is named: phmctl prepare-data NAME\nphmctl prepare-data --list shows the dataset cards"
        )
    given = {"tokenizer": tokenizer, "vocabulary": vocabulary, "joint": joint, "max_tokens": max_tokens}
    section = {key: value for key, value in given.items() if value is not None}
    named = {"train": train, "valid": valid, "test": test}
    files = {split: pair for split, pair in named.items() if pair is not None}
    labelled = LabelledOptions(table, text, label, quoting, header, extra_split, vectors)
    common = {"root": data or data_root(), "source": source, "workers": workers, "force": force}
    prepare, show = _WAYS[_task_of(name, files, labelled)]
    prepared = prepare(name, recipe, section, files, labelled, common)
    if json:
        emit_json({"folder": str(prepared.folder), **prepared.manifest})
    else:
        show(prepared.manifest)


def _task_of(name: str, files: Mapping[str, _Files], labelled: LabelledOptions) -> str:
    """Return the task that the data is for: that of the user's own files, else the card's."""
    from phmctl.data.catalog import card_task

    if files or labelled.table:
        return "translation" if files else "classification"
    return card_task(name)


def _translation(
    name: str,
    recipe: str | None,
    section: Mapping[str, Any],
    files: Mapping[str, _Files],
    labelled: LabelledOptions,
    common: Mapping[str, Any],
) -> "PreparedData":
    from phmctl.data.preparation import choose_section, prepare_named

    if labelled.given():
        raise DataError(f"{', '.join(labelled.given())} is for labelled text; {name} is parallel text, to translate")
    return prepare_named(choose_section(name, recipe, section), files=files, **common)


def _classification(
    name: str,
    recipe: str | None,
    section: Mapping[str, Any],
    files: Mapping[str, _Files],
    labelled: LabelledOptions,
    common: Mapping[str, Any],
) -> "LabelledData":
    return prepare_labelled_named(name, recipe, section, labelled, **common)


def _list(data: Path | None, *, as_json: bool) -> None:
    """Print the dataset cards, a table a task."""
    from itertools import groupby

    from phmctl.console import emit_json, note, print_table
    from phmctl.data.listing import list_cards
    from phmctl.data.store import data_root

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


def _show(manifest: Mapping[str, Any]) -> None:
    """Print what was read, kept and dropped, a line a split."""
    from phmctl.console import print_table

    splits = manifest["splits"]
    dropped = sorted({reason for counts in splits.values() for reason in counts["dropped"]})
    noted = sorted({reason for counts in splits.values() for reason in counts["noted"]})
    titles = ["split", "read", *(f"− {_words(reason)}" for reason in dropped), "kept"]
    titles += [f"of it {_words(reason)}" for reason in noted]
    titles += [f"{side} tokens" for side in (manifest["source_language"], manifest["target_language"])]
    print_table(
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


# How the data of each task is prepared, and what was prepared is shown.
_WAYS: Mapping[str, tuple[Callable[..., Any], Callable[[Mapping[str, Any]], None]]] = {
    "translation": (_translation, _show),
    "classification": (_classification, show_labelled),
}
