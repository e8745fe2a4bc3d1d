"""Tasks on prepared text: they share the preparation of a corpus, a user's own too, and the sizes of the data."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.data.card import RESERVED, RowFormat
from phmctl.data.corpus import hold_out, own_corpus
from phmctl.data.rows import HoldOut
from phmctl.errors import DataError
from phmctl.recipe.loading import load_recipe
from phmctl.runs import Run
from phmctl.runs.copies import load_cleaning, load_tokenizers
from phmctl.runs.find import find_run
from phmctl.tasks.base import AnsweringKind, R, Sizes, option_name

if TYPE_CHECKING:
    from phmctl.data.prepared import PreparedData
    from phmctl.data.provenance import Vocabulary

_FLAGS = {"joint": "--joint or --separate", "direction": "--reverse"}  # keys with a flag of another name
_MANIFEST = "manifest.json"  # of a prepared folder
TEXT_OPTIONS = ("tokenizer", "vocabulary", "max_tokens")  # of every task on text
TABLE_OPTIONS = ("header", "quoting", "extra", "skip_bad_lines", "split")  # of every table


@dataclass(frozen=True)
class OwnFiles:
    """A user's own files, as the options name them."""

    files: Mapping[str, Any]  # by split
    row_format: RowFormat | None  # of tables; None: the default
    languages: tuple[str, str] | None = None
    columns_given: bool = True


class TextKind(AnsweringKind[R]):
    """A task on prepared text."""

    commands: Sequence[str] = ("prepare-data", "train", "eval", "decode", "count-params", "bench train")
    section: type[Any]  # the recipe's data section
    labelled = False  # whether its text has labels
    prepare_options: Sequence[str]  # options of ``prepare-data``, and keys of the data section
    file_options: str  # how to give own files, for error messages
    sides: tuple[str, str]  # names of the two sizes of prepared text
    size_note: str  # the two sizes in words
    default_classes: int = 0  # number of classes if the data is not prepared and the second size is theirs

    def prepare(
        self,
        name: str,
        *,
        data: Path | None,
        recipe: str | None,
        settings: Mapping[str, Any],
        files: Mapping[str, Any],
        options: Mapping[str, Any],
        cleaning: Mapping[str, Any],
        vocabulary_of: Path | None,
        source: Path | None,
        force: bool,
        refetch: bool,
    ) -> PreparedData:
        """Prepare a card's corpus or the user's own; see :func:`phmctl.prepare`.

        Args:
            settings: keys of the data section.
            files: own parallel files by split.
            options: options for reading own files and word vectors.
            cleaning: fields of the cleaning that replace the card's.

        Raises DataError, RecipeError, OutputError.
        """
        from phmctl.data.prepare import choose_section, prepare
        from phmctl.data.prepared import data_root  # imports numpy, which an export answers without

        names = [*options, *settings, *(files if self.labelled else ())]
        wrong = [_FLAGS.get(key, option_name(key)) for key in names if key not in self.prepare_options]
        if wrong:
            own_type, other_type = ("labelled", "parallel") if self.labelled else ("parallel", "labelled")
            raise DataError(
                f"{', '.join(wrong)} is for {other_type} text; {name} is {own_type} text: {self.file_options}"
            )
        own = self.own_files(files, options)
        reading = [option_name(key) for key in options if key != "vectors"]
        if not own.files and reading:
            raise DataError(f"{', '.join(reading)} is for your own files: give those with {self.file_options}")
        vocabulary = None if vocabulary_of is None else read_vocabulary(vocabulary_of)
        section = choose_section(name, recipe, settings, self.section, vocabulary)
        corpus = None
        own_settings: dict[str, Any] = {}
        if own.files:
            skip = bool(options.get("skip_bad_lines"))
            corpus = own_corpus(
                name,
                own.files,
                own.row_format,
                skip=skip,
                languages=own.languages or ("source", "target"),
                columns_given=own.columns_given,
            )
            if recipe and load_recipe(recipe).task == "probing":
                corpus = replace(corpus, train_text=True)  # the probed encoder's tokenizer reads the text
            if "split" in options:
                corpus = hold_out(corpus, HoldOut.parse(options["split"]))
                own_settings["split"] = options["split"]
            if own.row_format:
                own_settings["rows"] = own.row_format.model_dump(mode="json")
            if skip:
                own_settings["skip_bad_lines"] = True
            if own.languages:
                own_settings["languages"] = list(own.languages)
        return prepare(
            section,
            corpus,
            cleaning,
            root=data_root(data),
            source=source,
            settings=own_settings,
            vocabulary=vocabulary,
            vectors=options.get("vectors"),
            force=force,
            refetch=refetch,
        )

    @abstractmethod
    def own_files(self, files: Mapping[str, Any], options: Mapping[str, Any]) -> OwnFiles:
        """Return the user's own files. Raises DataError if the options do not describe them."""

    def sizes(self, recipe: Any, data: Path | None = None) -> Sizes:
        from phmctl.data.prepared import trained_sizes

        trained = None if data is None else trained_sizes(recipe.data, data)
        if trained is not None:
            note = f"vocabulary: {self.size_note.format(*trained)}, as in the prepared data"
            return Sizes(dict(zip(self.sides, trained, strict=True)), note, trained=True)
        vocabulary = recipe.data.vocabulary
        note = f"vocabulary: {vocabulary:,}, as the recipe asks; a trained tokenizer may be smaller"
        return Sizes({self.sides[0]: vocabulary, self.sides[1]: self.default_classes or vocabulary}, note)


def read_vocabulary(path: Path) -> Vocabulary:
    """Return the vocabulary of a prepared folder or of a run. Raises DataError, RunError."""
    from phmctl.data.provenance import Vocabulary

    if (path / _MANIFEST).is_file():
        return Vocabulary.of_folder(path)
    folders = sorted(str(manifest.parent) for manifest in path.glob(f"[!.]*/{_MANIFEST}"))
    if folders:
        raise DataError(f"{path} is the folder of a corpus; name a folder in it: {', '.join(folders)}")
    run = Run.open(find_run(path))
    settings = run.data().get("settings", {})
    if "vocabulary" not in settings:
        raise DataError(f"{run.name} was not trained on text and lacks a vocabulary; name another run")
    return Vocabulary(run.name, load_tokenizers(run), load_cleaning(run), settings)


def row_format(option: str, texts: Sequence[str], label: str | None, options: Mapping[str, Any]) -> RowFormat:
    """Return the format of tables whose text and label columns were named with `option`.

    Columns are numbers, counted from 0, if all of them are; then the table has no header unless the user says so.

    Raises DataError.
    """
    columns = list(texts) if label is None else [*texts, label]
    extras = options.get("extra") or ()
    repeated = [column for column in columns if columns.count(column) > 1]
    if repeated:
        raise DataError(f"{option}: column {repeated[0]!r} is named twice; name different columns")
    reserved = [column for column in extras if column in (*columns, *RESERVED)]
    if reserved:
        raise DataError(f"--extra {reserved[0]}: the name is taken; rename the column of whole numbers")
    all_columns = (*columns, *extras)
    numbers = all(column.isdecimal() for column in all_columns)
    header = options.get("header", not numbers)
    if not header and not numbers:
        raise DataError(f"with --no-header, {option} and --extra must be numbers of columns, counted from 0")
    places = {column: int(column) if numbers else column for column in all_columns}
    return RowFormat(
        texts=tuple(places[column] for column in texts),
        label=None if label is None else places[label],
        extras={column: places[column] for column in extras},
        header=header,
        quoting=options.get("quoting"),
    )
