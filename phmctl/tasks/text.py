"""Prepare a card's corpus or a user's own files: the parallel text of translators, the labelled text of classifiers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import note
from phmctl.data.card import RESERVED, RowFormat
from phmctl.data.corpus import hold_out, own_corpus
from phmctl.data.rows import HoldOut
from phmctl.errors import DataError
from phmctl.languages import is_code, language
from phmctl.metrics.text import usual_tokenizer
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import LabelledSection, ParallelSection
from phmctl.runs import Run
from phmctl.runs.copies import load_cleaning, load_tokenizers
from phmctl.runs.find import find_run
from phmctl.tasks.base import option_name

if TYPE_CHECKING:
    from phmctl.data.prepared import PreparedData
    from phmctl.data.provenance import Vocabulary

_FLAGS = {"joint": "--joint or --separate", "direction": "--reverse"}  # keys with a flag of another name
_MANIFEST = "manifest.json"  # of a prepared folder
_TEXT_OPTIONS = ("tokenizer", "vocabulary", "max_tokens")  # of both kinds of text
_TABLE_OPTIONS = ("header", "quoting", "extra", "skip_bad_lines", "split")  # of every table
_PAIR_TABLE = {"columns", "header", "quoting", "extra"}  # options that describe a table of both sides


@dataclass(frozen=True)
class OwnFiles:
    """A user's own files, as the options name them."""

    files: Mapping[str, Any]  # by split
    row_format: RowFormat | None  # of tables; None: the default
    languages: tuple[str, str] | None = None
    columns_given: bool = True


@dataclass(frozen=True, kw_only=True)
class OwnText:
    """A type of text that ``prepare-data`` reads."""

    labelled: bool
    section: type[ParallelSection | LabelledSection]  # the recipe's data section
    options: Sequence[str]  # options of ``prepare-data``, and keys of the data section
    own_options: Sequence[str]  # options that only this text has, so that they decide which text it is
    file_options: str  # how to give own files, for error messages
    # Return the user's own files, by split. Raises DataError if the options do not describe them.
    own_files: Callable[[Mapping[str, Any], Mapping[str, Any]], OwnFiles]


def prepare_text(
    text: OwnText,
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

    names = [*options, *settings, *(files if text.labelled else ())]
    wrong = [_FLAGS.get(key, option_name(key)) for key in names if key not in text.options]
    if wrong:
        own_type, other_type = ("labelled", "parallel") if text.labelled else ("parallel", "labelled")
        raise DataError(f"{', '.join(wrong)} is for {other_type} text; {name} is {own_type} text: {text.file_options}")
    own = text.own_files(files, options)
    reading = [option_name(key) for key in options if key != "vectors"]
    if not own.files and reading:
        raise DataError(f"{', '.join(reading)} is for your own files: give those with {text.file_options}")
    vocabulary = None if vocabulary_of is None else read_vocabulary(vocabulary_of)
    section = choose_section(name, recipe, settings, text.section, vocabulary)
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


def note_unknown_languages(*codes: object) -> None:
    """Name the languages whose tokenizer is not known, with the tokenizer that BLEU uses."""
    for code in codes:
        if language(code) is None and code not in (None, "source", "target"):  # own files without languages
            tokenizer = usual_tokenizer(code)
            note(f"language {code!r} is not known: BLEU of its text uses the tokenizer {tokenizer}")


def parallel_files(files: Mapping[str, Any], options: Mapping[str, Any]) -> OwnFiles:
    languages = None
    if "languages" in options:
        languages = _pair("languages", options["languages"])
        if not all(map(is_code, languages)):
            raise DataError(f"--languages {options['languages']}: expected two codes, SOURCE,TARGET, as de,en")
        note_unknown_languages(*languages)
    columns = _pair("columns", options.get("columns", "0,1"))
    is_table = not _PAIR_TABLE.isdisjoint(options)
    table_format = row_format("--columns", columns, None, options) if is_table else None
    return OwnFiles(files, table_format, languages, columns_given="columns" in options)


def _pair(option: str, value: str) -> tuple[str, str]:
    names = [name.strip() for name in value.split(",")]
    if len(names) != 2 or "" in names:
        raise DataError(f"--{option} {value}: expected two names, SOURCE,TARGET")
    return names[0], names[1]


def labelled_files(files: Mapping[str, Any], options: Mapping[str, Any]) -> OwnFiles:
    tables: dict[str, Any] = {}
    for value in options.get("table") or ():
        split, _, path = value.partition("=")
        if not split or not path:
            raise DataError(f"--table {value}: expected SPLIT=FILE")
        if split in tables:
            raise DataError(f"--table {value}: {split} is given twice")
        tables[split] = [[Path(path)]]
    return OwnFiles(tables, labelled_format(options) if tables else None)


def labelled_format(options: Mapping[str, Any]) -> RowFormat:
    """Return the format of labelled tables. Raises DataError if a column is missing or named twice."""
    texts = options.get("text") or ()
    label = options.get("label")
    if not 1 <= len(texts) <= 2 or label is None:
        raise DataError("tables need --text COLUMN (once, or twice for pairs) and --label COLUMN")
    return row_format("--text and --label", texts, label, options)


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


PARALLEL_TEXT = OwnText(
    labelled=False,
    section=ParallelSection,
    options=(*_TEXT_OPTIONS, "joint", "direction", "copies", *_TABLE_OPTIONS, "columns", "languages"),
    own_options=("train", "valid", "test"),
    file_options="--train FILE [--train FILE] --valid FILE [--valid FILE]",
    own_files=parallel_files,
)
LABELLED_TEXT = OwnText(
    labelled=True,
    section=LabelledSection,
    options=(*_TEXT_OPTIONS, "table", "text", "label", *_TABLE_OPTIONS, "vectors"),
    own_options=("table",),
    file_options="--table SPLIT=FILE --text COLUMN --label COLUMN",
    own_files=labelled_files,
)
