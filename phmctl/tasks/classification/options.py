"""Preparing labelled text as the command line asks for it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.errors import DataError
from phmctl.recipe.schema import LabelledSection
from phmctl.tasks.base import Preparation, option_name

if TYPE_CHECKING:
    from phmctl.data.card import Rows
    from phmctl.data.corpus import Corpus
    from phmctl.data.prepared.folder import PreparedData


_COLUMNS = ("--text", "--label", "--extra", "--quoting", "--header")  # how a user's tables are read


@dataclass(frozen=True)
class LabelledOptions:
    """What the command line says of labelled text, as it was typed; None and empty where nothing was said."""

    table: Sequence[str] | None = None
    text: Sequence[str] | None = None
    label: str | None = None
    quoting: bool | None = None
    header: bool | None = None
    extra: Sequence[str] | None = None
    extra_split: Sequence[str] | None = None
    vectors: Path | None = None

    def given(self) -> list[str]:
        """Return the options that were given."""
        named = {f"--{each.name.replace('_', '-')}": getattr(self, each.name) for each in fields(self)}
        return [name for name, value in named.items() if value not in (None, [], ())]

    def rows(self) -> "Rows | None":
        """Return how the user's tables are read; None where no column is named.

        Raises:
            DataError: a column is missing or named twice, or one that is no number where there is no header.
        """
        from pydantic import ValidationError

        from phmctl.data.card import RESERVED, Rows

        if not self.text and self.label is None:
            return None
        if not self.text or self.label is None or len(self.text) > 2:
            raise DataError("tables want --text COLUMN (once, or twice for pairs) and --label COLUMN")
        named = [*self.text, self.label]
        twice = next((column for column in named if named.count(column) > 1), None)
        if twice is not None:
            raise DataError(f"column {twice!r} is named twice; --text and --label want a column each")
        taken = next((name for name in self.extra or () if name in (*named, *RESERVED)), None)
        if taken is not None:
            raise DataError(f"--extra {taken}: a column of whole numbers beside the texts, which is not called so")
        header = self.header is not False
        try:
            texts = tuple(_column(name, header) for name in self.text)
            extras = {name: _column(name, header) for name in self.extra or ()}
            label = _column(self.label, header)
            return Rows(texts=texts, label=label, extras=extras, header=header, quoting=bool(self.quoting))
        except (ValidationError, ValueError) as error:
            raise DataError(
                "with --no-header, --text and --label are numbers of columns, counted from 0; so is --extra"
            ) from error


def _column(name: str, header: bool) -> str | int:
    return name if header else int(name)


def prepare_asked(asked: Preparation) -> "PreparedData":
    """Prepare labelled text. Raises DataError, RecipeError, OutputError."""
    from phmctl.data.prepared.prepare import choose_section, prepare_named
    from phmctl.data.prepared.vocabulary import Vocabulary

    if asked.files:
        files = ", ".join(map(option_name, asked.files))
        raise DataError(f"{files} is for parallel text; {asked.name} is labelled text: give --table SPLIT=FILE")
    if "joint" in asked.settings:
        raise DataError(
            f"--joint and --separate are for translation; {asked.name} is labelled text, with one vocabulary"
        )
    if "direction" in asked.settings:
        raise DataError(f"--reverse is for translation; {asked.name} is labelled text, which has no direction")
    if "copies" in asked.settings:
        raise DataError(f"--copies is for translation; {asked.name} is labelled text, which has no targets")
    if "columns" in asked.options:
        raise DataError(f"--columns is for parallel text; {asked.name} is labelled text: --text COLUMN --label COLUMN")
    options = LabelledOptions(**asked.options)
    vocabulary = Vocabulary.of(asked.vocabulary_of) if asked.vocabulary_of else None
    section = choose_section(asked.name, asked.recipe, asked.settings, LabelledSection, vocabulary)
    own, settings = _own_corpus(asked.name, options)
    extra = _assigned("extra-split", options.extra_split, "SPLIT=DIR")
    vectors = options.vectors
    return prepare_named(
        section, own=own, settings=settings, vocabulary=vocabulary, extra=extra, vectors=vectors, **asked.common
    )


def _own_corpus(name: str, options: LabelledOptions) -> "tuple[Corpus | None, dict[str, Any]]":
    """Return the corpus of a user's own tables, if there are some, and the settings of how they are read."""
    from phmctl.data.corpus import own_corpus

    tables = _assigned("table", options.table, "SPLIT=FILE")
    columns = [
        option for option in options.given() if option in ("--text", "--label", "--extra", "--quoting", "--header")
    ]
    if columns and not tables:
        raise DataError(f"{', '.join(columns)} is for your own tables: give those with --table SPLIT=FILE")
    if not tables:
        return None, {}
    rows = options.rows()
    if rows is None:
        raise DataError("a corpus of your own tables needs --text COLUMN (twice for pairs) and --label COLUMN")
    told = {"rows": rows.model_dump(mode="json"), "quoting": options.quoting}
    return own_corpus(name, {split: [[path]] for split, path in tables.items()}, rows, quoting=options.quoting), told


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
