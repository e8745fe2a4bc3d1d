"""What tasks on text share: preparing it, a user's own too; binding a recipe to prepared text; its sizes."""

from __future__ import annotations

import pkgutil
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.data.card import RESERVED, RowFormat
from phmctl.data.corpus import own_corpus
from phmctl.errors import DataError
from phmctl.recipe.loading import load_recipe
from phmctl.tasks.base import R, Sizes, Task, TaskKind, option_name

if TYPE_CHECKING:
    from phmctl.data.prepared.folder import PreparedData
    from phmctl.data.prepared.provenance import Vocabulary

_FLAGS = {"joint": "--joint or --separate", "direction": "--reverse"}  # that are not called so
TAKEN = ("tokenizer", "vocabulary", "max_tokens")  # by any text
TABLES = ("header", "quoting", "extra", "skip_bad_lines")  # options of any table


class TextKind(TaskKind[R]):
    """A kind of task on text that is prepared."""

    section: type[Any]  # of its recipes' data
    labelled = False  # whether its text is
    takes: Sequence[str]  # the options and keys of the data section that it has
    way: str  # how a user's own files are given
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

        given = (*options, *settings, *(files if self.labelled else ()))
        if wrong := [_FLAGS.get(key, option_name(key)) for key in given if key not in self.takes]:
            text, other = ("labelled", "parallel") if self.labelled else ("parallel", "labelled")
            raise DataError(f"{', '.join(wrong)} is for {other} text; {name} is {text} text: {self.way}")
        files, rows, how = self.own_files(files, options)
        if not files and (about := [option_name(key) for key in options if key != "vectors"]):
            raise DataError(f"{', '.join(about)} is for your own files: give those with {self.way}")
        section, own, more = choose_section(name, recipe, settings, self.section, vocabulary), None, dict[str, Any]()
        if files:
            skip = bool(options.get("skip_bad_lines"))
            own = own_corpus(name, files, rows, skip=skip, **how)
            if recipe and load_recipe(recipe).task == "probing":
                own = replace(own, train_text=True)  # probes read it by the encoder's own tokenizer
            more = {"rows": rows.model_dump(mode="json")} if rows else {}
            more |= {"skip_bad_lines": True} if skip else {}
            more |= {"languages": list(how["languages"])} if "languages" in how else {}
        asked |= {"own": own, "settings": more, "vocabulary": vocabulary, "vectors": options.get("vectors")}
        return prepare(section, **asked)

    @abstractmethod
    def own_files(
        self, files: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], RowFormat | None, dict[str, Any]]:
        """Return a user's files by split, how tables are read, and more for ``own_corpus``."""

    def open(self, recipe: Any, data: Path) -> Task:
        from phmctl.data.prepared.folder import PreparedData

        found: Task = pkgutil.resolve_name(self.task)(recipe, PreparedData.find(recipe.data, data))
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


def rows_of(option: str, texts: Sequence[str], label: str | None, given: Mapping[str, Any]) -> RowFormat:
    """Return how tables are read, of which an `option` named the columns of the texts and of the label.

    Columns are numbers, counted from 0, where all of them are; then there is no header but where the user says so.
    Raises DataError.
    """
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
    return RowFormat(
        texts=tuple(columns[name] for name in texts),
        label=None if label is None else columns[label],
        extras={name: columns[name] for name in extras},
        header=header,
        quoting=given.get("quoting"),
    )
