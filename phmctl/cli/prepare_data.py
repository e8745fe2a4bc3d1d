"""``phmctl prepare-data``: raw text to token ids on disk."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from phmctl.cli.options import DataRoot, Json, complete_card, complete_recipe

_Files = tuple[Path, Path]


def prepare_data(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME", help="A dataset card, or a name for your own files.", autocompletion=complete_card
        ),
    ],
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
        bool | None, typer.Option("--joint/--separate", help="One vocabulary for both sides, or one each.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest side kept in train, in tokens with the end of sentence.")
    ] = None,
    train: Annotated[_Files | None, typer.Option(metavar="SRC TGT", help="Your own training files.")] = None,
    valid: Annotated[_Files | None, typer.Option(metavar="SRC TGT", help="Your own validation files.")] = None,
    test: Annotated[_Files | None, typer.Option(metavar="SRC TGT", help="Your own test files.")] = None,
    data: DataRoot = None,
    workers: Annotated[int, typer.Option(min=1, help="Threads of the tokenizer.")] = 1,
    force: Annotated[bool, typer.Option("--force", help="Prepare anew even if nothing has changed.")] = False,
    json: Json = False,
) -> None:
    """Clean and tokenize a corpus, once for all runs that use it."""
    from phmctl.console import emit_json
    from phmctl.data.preparation import choose_section, prepare_named
    from phmctl.data.store import data_root

    given = {"tokenizer": tokenizer, "vocabulary": vocabulary, "joint": joint, "max_tokens": max_tokens}
    section = choose_section(name, recipe, {key: value for key, value in given.items() if value is not None})
    named = {"train": train, "valid": valid, "test": test}
    files = {split: pair for split, pair in named.items() if pair is not None}
    prepared = prepare_named(
        section, root=data or data_root(), source=source, files=files, workers=workers, force=force
    )
    if json:
        emit_json({"folder": str(prepared.folder), **prepared.manifest})
    else:
        _show(prepared.manifest)


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
