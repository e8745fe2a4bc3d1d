"""Dataset cards: YAML files that describe a corpus.

A card describes parallel text (``task: translation``), or labelled texts and pairs of texts (``task: classification``).
"""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from phmctl.errors import DataError, nearest
from phmctl.recipe.documents import read_document
from phmctl.recipe.models import NonNegativeInt, PositiveInt, Section
from phmctl.shipped import shipped, shipped_names
from phmctl.storage import sha256_text

Column = str | NonNegativeInt  # a name in the header, or a position counted from 0
DefaultKey = Literal["tokenizer", "vocabulary", "joint", "max_tokens"]  # keys of a recipe's data section
Format = Literal["text", "bpe", "iwslt-xml", "iwslt-tags"]


def check_split(name: str) -> str:
    """Return the name of a split. Raises ValueError unless it is train, valid, test, or valid_… or test_…."""
    if re.fullmatch(r"train|(?:valid|test)(?:_[a-z0-9_]{1,50})?", name):
        return name
    guess = "" if name.startswith(("valid_", "test_")) else nearest(name, ("train", "valid", "test")).strip(" ()")
    raise ValueError(guess or "use train, valid, test, or test_ followed by up to 50 lower-case letters, digits and _")


# Column names of prepared data and of prediction tables. Extras cannot have them.
_TEXT_COLUMNS = ("text", "first", "second", "source", "target")
RESERVED = (
    *("label", "predicted", "probability", "texts"),
    *_TEXT_COLUMNS,
    *(f"{name}_text" for name in _TEXT_COLUMNS),
)

SplitName = Annotated[str, AfterValidator(check_split)]
FileNames = tuple[str, ...]


class RowFormat(Section):
    """The format of a table or of JSON lines: which columns or fields hold the texts, the label and the extras."""

    format: Literal["tsv", "csv", "jsonl"] = "tsv"
    quoting: bool | None = None  # whether quotes enclose cells (None: in CSV only)
    header: bool = True  # the first line names the columns
    texts: Annotated[tuple[Column, ...], Field(min_length=1, max_length=2)]
    label: Column | None = None  # None for parallel text
    extras: dict[str, Column] = Field(default_factory=dict)  # integers that are stored with each example
    split: Column | None = None  # column with the split of each row, if one file contains all splits
    names: dict[str, str] = Field(default_factory=dict)  # labels of the files → labels of the card
    unlabelled: tuple[str, ...] = ()  # values that mean "no label". These rows are dropped and counted
    odd_rows: Literal["refuse", "drop"] = "refuse"  # malformed rows: an error, or dropped and counted

    @model_validator(mode="after")
    def _check_header(self) -> Self:
        has_names = any(isinstance(column, str) for column in self.columns)
        if has_names and not self.header and self.format != "jsonl":
            raise ValueError("without a header columns are numbers, counted from 0")
        return self

    @property
    def quoted(self) -> bool:
        return self.format == "csv" if self.quoting is None else self.quoting

    @property
    def columns(self) -> list[Column]:
        optional = [column for column in (self.label, self.split) if column is not None]
        return [*self.texts, *self.extras.values(), *optional]


def table_format(
    texts: Sequence[str],
    label: str | None = None,
    *,
    extra: Sequence[str] = (),
    header: bool | None = None,
    quoting: bool | None = None,
) -> RowFormat:
    """Return the format of a user's tables from the options that name their columns.

    Columns are numbers, counted from 0, if all of them are. Then a table has no header unless `header` says so.

    Raises DataError.
    """
    columns = [*texts, *([] if label is None else [label])]
    for column in columns:
        if columns.count(column) > 1:
            raise DataError(f"column {column!r} is named twice: name different columns")
    for column in extra:
        if column in (*columns, *RESERVED):
            raise DataError(f"extra={column}: the name is taken. Rename the column of whole numbers")
    numbers = all(column.isdecimal() for column in (*columns, *extra))
    if header is False and not numbers:
        raise DataError(f"without a header, columns are numbers from 0, not {', '.join((*columns, *extra))}")
    places: dict[str, Column] = {column: int(column) if numbers else column for column in (*columns, *extra)}
    return RowFormat(
        texts=tuple(places[column] for column in texts),
        label=None if label is None else places[label],
        extras={column: places[column] for column in extra},
        header=not numbers if header is None else header,
        quoting=quoting,
    )


def labelled_format(texts: Sequence[str] | None, label: str | None, **options: Any) -> RowFormat:
    """Return the format of labelled tables, as :func:`table_format`. Raises DataError if a column is missing."""
    if texts is None or not 1 <= len(texts) <= 2 or label is None:
        raise DataError("labelled tables need text, one column or two for pairs, and label, a column")
    return table_format(texts, label, **options)


class SplitFiles(Section):
    """The files of a split: one or more for each side, or tables. Each may also end in ``.gz``.

    A plain list of names means tables. Names may contain folders: ``original/test.tsv``.
    """

    format: Format = "text"
    source: FileNames = ()  # read one after another, in this order
    target: FileNames = ()
    tables: FileNames = ()
    rows: RowFormat | None = None  # the format of these tables (None: the layout's)

    @model_validator(mode="before")
    @classmethod
    def _list_of_tables(cls, value: Any) -> Any:
        return {"tables": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _check_sides(self) -> Self:
        if bool(self.source) == bool(self.tables) or len(self.source) != len(self.target):
            raise ValueError("give either a list of tables, or equally many files for 'source' and 'target'")
        return self

    @property
    def names(self) -> FileNames:
        return (*self.source, *self.target, *self.tables)


class Layout(Section):
    """File names and formats of one distribution of a corpus."""

    name: str
    rows: RowFormat = RowFormat(header=False, texts=(0, 1))  # the format of tables
    splits: dict[SplitName, SplitFiles]  # splits other than train, valid and test are optional
    parts: dict[SplitName, str] = Field(default_factory=dict)  # split → its value in the column `rows.split`

    @property
    def required(self) -> list[str]:
        """Names of the files without which a folder does not have this layout."""
        splits = [files for split, files in self.splits.items() if split in ("train", "valid", "test")]
        return list(dict.fromkeys(name for files in splits for name in files.names))


class Hub(Section):
    id: Annotated[str, Field(pattern=r"^[^/.][^/]*/[^/.][^/]*$")]  # owner/name
    config: str | None = None
    folder: Annotated[str, Field(pattern=r"^[^/.]")] | None = None  # folder in the repository with the files
    revision: str | None = None
    splits: dict[SplitName, str]
    texts: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]  # columns, `translation.de` for a nested field
    label: str | None = None
    names: dict[str, str] = Field(default_factory=dict)
    unlabelled: tuple[str, ...] = ("-1",)

    @property
    def row_format(self) -> RowFormat:
        return RowFormat(
            format="jsonl", texts=self.texts, label=self.label, names=self.names, unlabelled=self.unlabelled
        )


class Url(Section):
    url: Annotated[str, Field(pattern=r"^https?://")]
    file: Annotated[str, Field(pattern=r"^[^/.][^/]*$")]  # name in the download cache
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  # None: unknown
    extract: bool = False  # the file is a tar or zip archive


class Cleaning(Section):
    """Changes to a corpus' text before tokenization, and the limits that rows must meet."""

    lowercase: bool = False
    entities: Literal["decode", "keep"] = "keep"  # Moses' &apos; and the like
    normalise: bool = False  # Unicode NFC. Each run of white space becomes one space
    # Largest ratio, longer text to shorter text in tokens, of a train row. 0 means no limit.
    max_ratio: Annotated[float, Field(ge=0)] = 0.0
    min_count: PositiveInt | None = None  # least occurrences of a word (None: 1), or of a pair that BPE joins (None: 2)
    duplicates: Literal["drop", "keep"] = "drop"  # train rows whose text is in valid or test
    keep: Literal["start", "end"] = "start"  # the part that is kept of an over-long labelled text of valid or test


class Card(Section):
    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    task: Literal["translation", "classification"] = "translation"
    title: str
    description: str
    licence: str
    homepage: str = ""
    source_language: str = ""
    target_language: str = ""
    built_in: bool = False  # part of the package, needs no download
    texts: Annotated[int, Field(ge=1, le=2)] | None = None  # texts of a labelled example
    symmetric: bool = False  # the order of a pair's texts does not matter
    train_text: bool = False  # also store the text of train, for models with their own tokenizers
    labels: tuple[str, ...] = ()  # classes in the order of their numbers (empty: the labels of train, sorted)
    sizes: dict[SplitName, int] = Field(default_factory=dict)  # published rows per split, if known
    # Rows of train that become valid or test if the files lack it: from this number on, counted from 1, each period-th.
    divide: dict[Literal["period", "valid", "test"], PositiveInt] = Field(default_factory=dict)
    defaults: dict[DefaultKey, str | bool | PositiveInt] = Field(default_factory=dict)  # used without recipe or option
    cleaning: Cleaning = Cleaning()
    local: tuple[Layout, ...] = ()
    urls: tuple[Url, ...] = ()
    hub: Hub | None = None
    prefer: Literal["hub", "urls"] = "urls"  # tried first if the card has both

    @model_validator(mode="after")
    def _check_task(self) -> Self:
        for key in ("texts",) if self.labelled else ("source_language", "target_language"):
            if not getattr(self, key):
                raise ValueError(f"needs {key!r} because of 'task: {self.task}'")
        if self.divide and "period" not in self.divide:
            raise ValueError("'divide' needs 'period'")
        rows = [row for key, row in self.divide.items() if key != "period"]
        if rows and (max(rows) > self.divide["period"] or len({*rows}) < len(rows)):
            raise ValueError("'divide': the rows of valid and test must differ, and not exceed the period")
        formats = {f"layout {layout.name!r}": layout.rows for layout in self.local}
        if self.hub:
            formats["the hub"] = self.hub.row_format
        count = self.texts if self.labelled else 2
        for name, row_format in formats.items():
            if len(row_format.texts) != count or (row_format.label is not None) != self.labelled:
                raise ValueError(f"{name} needs {count} 'texts' and {'a' if self.labelled else 'no'} 'label'")
        return self

    @property
    def labelled(self) -> bool:
        return self.task == "classification"

    @property
    def download_origins(self) -> list[str]:
        """The keys of the card's online sources, ``urls`` and ``hub``, in the order in which they are tried."""
        return [key for key in dict.fromkeys((self.prefer, "urls", "hub")) if getattr(self, key)]

    @property
    def digest(self) -> str:
        """The SHA-256 of the keys that determine the text. Descriptions, sizes and defaults are excluded."""
        descriptive = {"title", "description", "licence", "homepage", "sizes", "defaults"}
        content = self.model_dump(mode="json", exclude=descriptive, exclude_defaults=True)
        return sha256_text([json.dumps(content, sort_keys=True)])


def load_card(name_or_path: str) -> Card:
    """Return a shipped card, or the card in a YAML file. Raises DataError."""
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"} or not path.is_file():
        names = shipped_names("cards")
        if name_or_path not in names:
            raise DataError(
                f"no dataset card {name_or_path!r}{nearest(name_or_path, names)}: "
                "phmctl prepare-data --list shows all\n"
                "for your own parallel text: phmctl prepare-data NAME --train SRC --train TGT --valid SRC --valid TGT\n"
                "for labelled text: phmctl prepare-data NAME --table train=FILE --table valid=FILE --text COLUMN "
                "--label COLUMN"
            )
        path = shipped("cards") / f"{name_or_path}.yaml"
    return read_document(path, DataError).validate(Card, DataError)
