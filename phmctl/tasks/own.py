"""What tasks on text share: preparing it, a user's own too; binding a recipe to prepared text; its sizes."""

from __future__ import annotations

import importlib
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.errors import DataError
from phmctl.recipe.loading import load_recipe
from phmctl.tasks.base import R, Sizes, Task, TaskKind, option_name

if TYPE_CHECKING:
    from phmctl.data.card import Rows
    from phmctl.data.corpus import Corpus
    from phmctl.data.prepared.folder import PreparedData
    from phmctl.data.prepared.provenance import Vocabulary

_FLAGS = {"joint": "--joint or --separate", "direction": "--reverse"}  # that are not called so
TABLES = ("header", "quoting", "extra", "skip_bad_lines")  # options of any table


class TextKind(TaskKind[R]):
    """A kind of task on text that is prepared."""

    section: type[Any]  # of its recipes' data
    task: str  # the module and the class of its :class:`Task`
    sides: tuple[str, str]  # what the two sizes of prepared text are called
    found: str  # and in words
    classes: int = 0  # that are counted where the data is not there to tell, if the second size is theirs

    def prepare(
        self,
        name: str,
        *,
        recipe: str | None,
        settings: Mapping[str, Any],
        files: Mapping[str, Any],
        options: Mapping[str, Any],
        vocabulary: Vocabulary | None,
        **asked: Any,
    ) -> PreparedData:
        """Prepare a corpus. Raises DataError, RecipeError, OutputError.

        `settings` are of the data section, `files` the user's own by split, `options` the task's own; others are as
        :func:`~phmctl.data.prepared.prepare.prepare` has them.
        """
        from phmctl.data.prepared.prepare import choose_section, prepare

        own, more, further = self.corpus(name, files, options, settings)
        section = choose_section(name, recipe, settings, self.section, vocabulary)
        if own is not None and recipe and load_recipe(recipe).task == "probing":
            own = replace(own, train_text=True)  # probes read it by the encoder's own tokenizer
        return prepare(section, own=own, settings=more, vocabulary=vocabulary, **further, **asked)

    @abstractmethod
    def corpus(
        self, name: str, files: Mapping[str, Any], options: Mapping[str, Any], settings: Mapping[str, Any]
    ) -> tuple[Corpus | None, dict[str, Any], dict[str, Any]]:
        """Return a user's own corpus, the settings that decide what it holds, and more for ``prepare``."""

    def open(self, recipe: Any, data: Path) -> Task:
        from phmctl.data.prepared.folder import PreparedData

        module, _, name = self.task.partition(":")
        found: Task = getattr(importlib.import_module(module), name)(recipe, PreparedData.find(recipe.data, data))
        return found

    def sizes(self, recipe: Any, data: Path | None = None) -> Sizes:
        from phmctl.data.prepared.folder import trained_sizes

        trained = None if data is None else trained_sizes(recipe.data, data)
        if trained is not None:
            told = f"vocabulary: {self.found.format(*trained)}, as in the prepared data"
            return Sizes(dict(zip(self.sides, trained, strict=True)), told, trained=True)
        asked = recipe.data.vocabulary
        note = f"vocabulary: {asked:,}, as the recipe asks; a trained tokenizer may be smaller"
        return Sizes({self.sides[0]: asked, self.sides[1]: self.classes or asked}, note)


def rows_of(option: str, texts: Sequence[str], label: str | None, given: Mapping[str, Any]) -> Rows:
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
        quoting=given.get("quoting"),
    )


def refuse_others(name: str, given: Iterable[str], known: Sequence[str], text: str, other: str) -> None:
    """Refuse (DataError) options of another kind of text than a corpus has."""
    if wrong := [_FLAGS.get(key, option_name(key)) for key in given if key not in known]:
        ways = {"parallel": "--train SRC TGT", "labelled": "--table SPLIT=FILE --text COLUMN --label COLUMN"}
        raise DataError(f"{', '.join(wrong)} is for {other} text; {name} is {text} text: {ways[text]}")


def own_text(
    name: str, files: Mapping[str, Any], rows: Rows | None, given: Mapping[str, Any], **how: Any
) -> tuple[Corpus | None, dict[str, Any]]:
    """Return the corpus of a user's files, None where there are none, and the settings that decide what it holds."""
    from phmctl.data.corpus import own_corpus

    if not files:
        return None, {}
    skip = bool(given.get("skip_bad_lines"))
    settings: dict[str, Any] = {"rows": rows.model_dump(mode="json")} if rows else {}
    settings |= {"skip_bad_lines": True} if skip else {}
    return own_corpus(name, files, rows, skip=skip, **how), settings
