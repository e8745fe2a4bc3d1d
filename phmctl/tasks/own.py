"""What tasks on text share: a user's own corpus, as ``prepare-data`` describes it; the sizes of prepared text."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.errors import DataError
from phmctl.tasks.base import Sizes

if TYPE_CHECKING:
    from phmctl.data.card import Rows
    from phmctl.data.corpus import Corpus

TABLES = ("header", "quoting", "extra", "skip_bad_lines")  # options of any table


def rows_of(option: str, texts: Sequence[str], label: str | None, given: Mapping[str, Any]) -> "Rows":
    """Return how tables are read, of which an `option` named the columns of the texts and of the label.

    Columns are numbers, counted from 0, where all of them are; then there is no header but where the user says so.
    Raises DataError.
    """
    from phmctl.data.card import RESERVED, Rows

    named, extras = [*texts, *([] if label is None else [label])], given.get("extra") or ()
    if twice := [column for column in named if named.count(column) > 1]:
        raise DataError(f"column {twice[0]!r} is named twice by {option}; each wants a column of its own")
    if taken := [name for name in extras if name in (*named, *RESERVED)]:
        raise DataError(f"--extra {taken[0]}: a column of whole numbers beside the texts, which is not called so")
    numbers = all(name.isdecimal() for name in (*named, *extras))
    header = given.get("header", not numbers)
    if not header and not numbers:
        raise DataError(f"with --no-header, {option} are numbers, counted from 0; so is --extra")
    columns = {name: int(name) if numbers else name for name in (*named, *extras)}
    return Rows(
        texts=tuple(columns[name] for name in texts),
        label=None if label is None else columns[label],
        extras={name: columns[name] for name in extras},
        header=header,
        quoting=label is not None and bool(given.get("quoting")),
    )


def own_text(
    name: str, files: Mapping[str, Any], rows: "Rows | None", given: Mapping[str, Any], **how: Any
) -> "tuple[Corpus | None, dict[str, Any]]":
    """Return the corpus of a user's files, None where there are none, and the settings that decide what it holds."""
    from phmctl.data.corpus import own_corpus

    if not files:
        return None, {}
    quoting, skip = given.get("quoting"), bool(given.get("skip_bad_lines"))
    told = "header" in given or bool(rows and rows.header)
    settings = {"rows": rows.model_dump(mode="json"), "quoting": quoting} if rows else {}
    settings |= {"skip_bad_lines": True} if skip else {}
    if rows and not told:
        settings["header"] = "by its words"
    return own_corpus(name, files, rows, quoting=quoting, skip=skip, told=told, **how), settings


def assigned(option: str, values: Sequence[str] | None, form: str) -> dict[str, Path]:
    """Return what ``--option NAME=PATH`` says, by name."""
    found: dict[str, Path] = {}
    for value in values or ():
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise DataError(f"--{option} {value}: wants {form}")
        if name in found:
            raise DataError(f"--{option} {name} is given twice")
        found[name] = Path(path)
    return found


def vocabulary_sizes(recipe: Any, data: Path | None, names: tuple[str, str], found: str, others: int = 0) -> Sizes:
    """Return the two sizes of prepared text; or what the recipe asks for, with so many `others` than token types."""
    from phmctl.data.prepared.folder import trained_sizes

    trained = None if data is None else trained_sizes(recipe.data, data)
    if trained is not None:
        return Sizes(dict(zip(names, trained, strict=True)), found.format(*trained), trained=True)
    asked = recipe.data.vocabulary
    note = f"vocabulary: {asked:,}, as the recipe asks; a trained tokenizer may be smaller"
    return Sizes({names[0]: asked, names[1]: others or asked}, note)
