"""Preparing labelled text as the command line asks for it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.errors import DataError
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import LabelledSection
from phmctl.tasks.base import Preparation, option_name

if TYPE_CHECKING:
    from phmctl.data.card import Rows
    from phmctl.data.corpus import Corpus
    from phmctl.data.prepared.folder import PreparedData

_COLUMNS = ("text", "label", "quoting", "header", "extra", "skip_bad_lines")  # how a user's tables are read
_PARALLEL = {  # settings of parallel text, and what labelled text has instead
    "joint": "--joint and --separate are for translation; {} is labelled text, with one vocabulary",
    "direction": "--reverse is for translation; {} is labelled text, which has no direction",
    "copies": "--copies is for translation; {} is labelled text, which has no targets",
    "languages": "--languages is for parallel text; {} is labelled text",
    "columns": "--columns is for parallel text; {} is labelled text: --text COLUMN --label COLUMN",
}


def prepare_asked(asked: Preparation) -> "PreparedData":
    """Prepare labelled text. Raises DataError, RecipeError, OutputError."""
    from phmctl.data.prepared.prepare import choose_section, prepare_named
    from phmctl.data.prepared.provenance import Vocabulary

    if asked.files:
        files = ", ".join(map(option_name, asked.files))
        raise DataError(f"{files} is for parallel text; {asked.name} is labelled text: give --table SPLIT=FILE")
    for key, why in _PARALLEL.items():
        if key in asked.settings or key in asked.options:
            raise DataError(why.format(asked.name))
    given = asked.options
    vocabulary = Vocabulary.of(asked.vocabulary_of) if asked.vocabulary_of else None
    section = choose_section(asked.name, asked.recipe, asked.settings, LabelledSection, vocabulary)
    own, settings = _own_corpus(asked.name, given)
    if own is not None and asked.recipe and load_recipe(asked.recipe).task == "probing":
        own = replace(own, train_text=True)  # probes read it by the encoder's own tokenizer
    extra = _assigned("extra-split", given.get("extra_split"), "SPLIT=DIR")
    more: dict[str, Any] = {
        "own": own,
        "settings": settings,
        "vocabulary": vocabulary,
        "extra": extra,
        "vectors": given.get("vectors"),
    }
    return prepare_named(section, **more, **asked.common)


def _own_corpus(name: str, given: Mapping[str, Any]) -> "tuple[Corpus | None, dict[str, Any]]":
    """Return the corpus of a user's own tables, if there are some, and the settings of how they are read."""
    from phmctl.data.corpus import own_corpus

    tables, quoting = _assigned("table", given.get("table"), "SPLIT=FILE"), given.get("quoting")
    columns = [option_name(key) for key in _COLUMNS if given.get(key) not in (None, [], ())]
    if columns and not tables:
        raise DataError(f"{', '.join(columns)} is for your own tables: give those with --table SPLIT=FILE")
    if not tables:
        return None, {}
    rows = rows_of(given)
    skip = bool(given.get("skip_bad_lines"))
    told = {"rows": rows.model_dump(mode="json"), "quoting": quoting} | ({"skip_bad_lines": True} if skip else {})
    files = {split: [[path]] for split, path in tables.items()}
    return own_corpus(name, files, rows, quoting=quoting, skip=skip), told


def rows_of(given: Mapping[str, Any]) -> "Rows":
    """Return how the user's tables are read.

    Raises DataError where a column is missing or named twice, or is no number where there is no header.
    """
    from pydantic import ValidationError

    from phmctl.data.card import RESERVED, Rows

    text, label, extra = given.get("text") or (), given.get("label"), given.get("extra") or ()
    if not 1 <= len(text) <= 2 or label is None:
        raise DataError("tables want --text COLUMN (once, or twice for pairs) and --label COLUMN")
    named = [*text, label]
    twice = next((column for column in named if named.count(column) > 1), None)
    if twice is not None:
        raise DataError(f"column {twice!r} is named twice; --text and --label want a column each")
    taken = next((name for name in extra if name in (*named, *RESERVED)), None)
    if taken is not None:
        raise DataError(f"--extra {taken}: a column of whole numbers beside the texts, which is not called so")
    header = given.get("header") is not False

    def column(name: str) -> str | int:
        return name if header else int(name)

    try:
        extras, quoting = {name: column(name) for name in extra}, bool(given.get("quoting"))
        texts = tuple(map(column, text))
        return Rows(texts=texts, label=column(label), extras=extras, header=header, quoting=quoting)
    except (ValidationError, ValueError) as error:
        raise DataError(
            "with --no-header, --text and --label are numbers of columns, counted from 0; so is --extra"
        ) from error


def _assigned(option: str, values: Sequence[str] | None, form: str) -> dict[str, Path]:
    """Return what ``--option NAME=PATH`` says, by name."""
    assigned: dict[str, Path] = {}
    for value in values or ():
        name, equals, path = value.partition("=")
        if not (name and equals and path):
            raise DataError(f"--{option} {value}: wants {form}")
        if name in assigned:
            raise DataError(f"--{option} {name} is given twice")
        assigned[name] = Path(path)
    return assigned
