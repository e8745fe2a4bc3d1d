"""Dataset cards: what a corpus is, where it lies, and how its files are read.

A card is of parallel text (``task: translation``) or of texts, or pairs of texts, with labels
(``task: classification``).
"""

import json
import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from phmctl.errors import DataError, nearest
from phmctl.files import sha256_text
from phmctl.recipe.documents import read_document
from phmctl.recipe.models import NonNegativeInt, PositiveInt, Section
from phmctl.shipped import shipped, shipped_names

Column = str | NonNegativeInt  # by its name in the header, or counted from 0
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
Default = Literal["tokenizer", "vocabulary", "joint", "max_tokens"]  # of a recipe's data section
Format = Literal["text", "bpe", "iwslt-xml", "iwslt-tags"]


def _below(name: str) -> str:
    """Refuse a path that leads out of its folder, or that a terminal would not show as it is."""
    parts = name.split("/")
    if {"", ".", ".."} & {*parts} or "\\" in name or not name.isprintable():
        raise ValueError(f"{name!r} is no plain name: it should lie below its folder, with '/' between parts")
    return name


def check_split(name: str) -> str:
    if not re.fullmatch(r"train|(?:valid|test)(?:_[a-z0-9_]+)?", name):
        guess = "" if name.startswith(("valid_", "test_")) else nearest(name, ("train", "valid", "test")).strip(" ()")
        raise ValueError(guess or "use train, valid, test, or test_ and a name of small letters, digits and _")
    return name


# What prepared data and predictions have columns for.
_SIDES = ("text", "first", "second", "source", "target")
RESERVED = ("label", "predicted", "probability", "texts", *_SIDES, *(f"{name}_text" for name in _SIDES))

SplitName = Annotated[str, AfterValidator(check_split)]
FileNames = tuple[Annotated[str, AfterValidator(_below)], ...]


class RowFormat(Section):
    """How a table's row, or a line's JSON object, becomes texts and a label."""

    format: Literal["tsv", "csv", "jsonl"] = "tsv"
    quoting: bool | None = None  # cells may stand in quotes; otherwise a quote is a character. None: as CSV has it
    header: bool = True  # the first line names the columns
    texts: Annotated[tuple[Column, ...], Field(min_length=1, max_length=2)]
    label: Column | None = None  # None: of parallel text
    extras: dict[str, Column] = Field(default_factory=dict)  # whole numbers that are kept beside the label
    split: Column | None = None  # names the split of a row, where one file holds all
    names: dict[str, str] = Field(default_factory=dict)  # the files' words for the card's labels
    unlabelled: tuple[str, ...] = ()  # what stands for "no label": such rows are dropped, and counted
    odd_rows: Literal["refuse", "drop"] = "refuse"  # rows that cannot be read; dropped, they are counted
    header_has: tuple[str, ...] = ()  # columns that tell this layout from another with the same file names

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        named = self.header_has or any(isinstance(column, str) for column in self.columns)
        if named and not self.header and self.format != "jsonl":
            raise ValueError("without a header columns are numbers, counted from 0")
        return self

    @property
    def quoted(self) -> bool:
        return self.format == "csv" if self.quoting is None else self.quoting

    @property
    def columns(self) -> list[Column]:
        others = [column for column in (self.label, self.split) if column is not None]
        return [*self.texts, *self.extras.values(), *others]


class SplitFiles(Section):
    """One split's files: two sides, or tables. Names are relative; each may also end in ``.gz``.

    A list of names alone is that of the tables, which are read as the layout's ``rows`` say.
    """

    format: Format = "text"
    source: FileNames = ()  # read one after another, in this order
    target: FileNames = ()
    tables: FileNames = ()

    @model_validator(mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return {"tables": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.source) == bool(self.tables) or len(self.source) != len(self.target):
            raise ValueError("wants either a list of tables, or 'source' and 'target' with as many files each")
        return self

    @property
    def sides(self) -> dict[str, FileNames]:
        """The file names by what is read from them: ``source``, ``target``, or ``rows`` of both."""
        return {"source": self.source, "target": self.target, "rows": self.tables}

    @property
    def names(self) -> FileNames:
        return (*self.source, *self.target, *self.tables)


class Layout(Section):
    """One way in which people have a corpus on disk."""

    name: str
    scattered: bool = False  # several archives: each file may lie in a subfolder of its own
    rows: RowFormat = RowFormat(header=False, texts=(0, 1))  # how tables are read
    splits: dict[SplitName, SplitFiles]  # not everybody has those beside train, valid and test
    parts: dict[SplitName, str] = Field(default_factory=dict)  # what `rows.split` says of each split's rows
    odd: Literal["agreement", "agreement_resplit", "agreement_table"] | None = None  # of `phmctl.data.rows`


class Hub(Section):
    id: Annotated[str, Field(pattern=r"^[^/.][^/]*/[^/.][^/]*$")]  # owner/name
    config: str | None = None
    folder: Annotated[str, AfterValidator(_below)] | None = None  # the folder in the repository that holds the files
    revision: str | None = None
    splits: dict[SplitName, str]
    texts: Annotated[tuple[str, ...], Field(min_length=1, max_length=2)]  # columns; or `translation.de`, a field in one
    label: str | None = None
    names: dict[str, str] = Field(default_factory=dict)
    unlabelled: tuple[str, ...] = ("-1",)


class Url(Section):
    url: Annotated[str, Field(pattern=r"^https?://")]
    file: Annotated[str, Field(pattern=r"^[^/.][^/]*$"), AfterValidator(_below)]  # its name in the cache
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  # None: not known
    extract: bool = False  # a tar or zip archive


class Divide(Section):
    """How a set without valid or test of its own is divided: which of every `period` rows are held out for them."""

    period: Annotated[int, Field(ge=2)]
    valid: PositiveInt | None = None  # the row with this number, counted from 1, and every `period`-th after it
    test: PositiveInt | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        places = self.places.values()
        if not places or max(places) > self.period or len(set(places)) < len(places):
            raise ValueError("wants 'valid', 'test' or both: two different numbers up to 'period'")
        return self

    @property
    def places(self) -> dict[str, int]:
        """The number of each held-out split's first row."""
        return {split: place for split in ("valid", "test") if (place := getattr(self, split)) is not None}


class Cleaning(Section):
    """What the corpus' text wants before it is tokenized, whatever the recipe, and which rows are left out."""

    lowercase: bool = False
    entities: Literal["decode", "keep"] = "keep"  # Moses' &apos; and the like
    normalise: bool = False  # Unicode NFC, and blanks of all kinds to one
    # longer text / shorter text in tokens, so at least 1, train only; 0 is off
    max_ratio: Annotated[float, Field(ge=0)] = 0.0
    min_count: PositiveInt | None = None  # of a word, or of a pair that BPE joins; None: 1 of a word, 2 of a pair
    duplicates: Literal["drop", "keep"] = "drop"  # train rows whose text stands in valid or test
    keep: Literal["start", "end"] = "start"  # which tokens stay of a labelled text of valid or test that is too long


class Card(Section):
    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    task: Literal["translation", "classification"] = "translation"
    title: str
    description: str
    licence: str
    homepage: str = ""
    source_language: str = ""
    target_language: str = ""
    built_in: bool = False  # comes with the package, nothing to fetch
    texts: Annotated[int, Field(ge=1, le=2)] | None = None  # that an example has
    symmetric: bool = False  # the order of a pair's texts means nothing: swapped, they are the same example
    train_text: bool = False  # train keeps its text too, for models with tokenizers of their own
    labels: tuple[str, ...] = ()  # the classes, in the order of their numbers; empty: those that train has, sorted
    borrowed: dict[SplitName, str] = Field(default_factory=dict)  # cards whose test sets are of interest here
    sizes: dict[SplitName, int] = Field(default_factory=dict)  # published rows a split; empty where they are not known
    divide: Divide | None = None  # for what has no valid or test of its own
    defaults: dict[Default, str | bool | PositiveInt] = Field(default_factory=dict)  # where nothing else is said
    cleaning: Cleaning = Cleaning()
    local: tuple[Layout, ...] = ()
    urls: tuple[Url, ...] = ()
    hub: Hub | None = None
    prefer: Literal["hub", "urls"] = "urls"  # which to ask first where both are given

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for key in ("texts",) if self.labelled else ("source_language", "target_language"):
            if not getattr(self, key):
                raise ValueError(f"wants {key!r}, as every card with 'task: {self.task}'")
        count = self.texts if self.labelled else 2
        read: dict[str, RowFormat | Hub] = {f"layout {each.name!r}": each.rows for each in self.local}
        for where, rows in {**read, **({"the hub": self.hub} if self.hub else {})}.items():
            if (len(rows.texts), rows.label is not None) != (count, self.labelled):
                raise ValueError(f"{where} wants {count} 'texts' and {'a' if self.labelled else 'no'} 'label'")
        return self

    @property
    def labelled(self) -> bool:
        return self.task == "classification"

    @property
    def ways(self) -> list[str]:
        """Where the network has it, in the order in which they are asked."""
        return [way for way in dict.fromkeys((self.prefer, "urls", "hub")) if getattr(self, way)]

    @property
    def digest(self) -> str:
        """The SHA-256 of what decides on the text: of all but prose, sizes and proposals."""
        prose = {"title", "description", "licence", "homepage", "sizes", "defaults"}
        content = self.model_dump(mode="json", exclude=prose, exclude_defaults=True)
        return sha256_text([json.dumps(content, sort_keys=True)])


def corpus_name(card: str) -> str:
    """Return a corpus' name: the card's id, or the stem of its file; raises DataError for what names no folder."""
    path = Path(card)
    name = path.stem if path.suffix in {".yaml", ".yml"} else card
    if not _NAME.fullmatch(name):
        raise DataError(f"{card!r} cannot name a corpus; use letters, digits, dots, hyphens and underscores")
    return name


def is_card(name: str) -> bool:
    """Return whether a corpus' name stands for a card, shipped or a file; otherwise it is of one's own files."""
    return name in shipped_names("cards") or name != corpus_name(name)


def load_card(name_or_path: str) -> Card:
    return read_document(find_card(name_or_path), DataError).validate(Card, DataError)


def list_cards(root: Path, name: str | None = None) -> list[dict[str, Any]]:
    """Return what is told of the shipped cards, by task and then by name, or of the one named.

    `root` has raw and prepared data: ``prepared`` are a card's folders, one for each tokenizer setting, and ``fetched``
    says whether something of it lies in the cache of downloads. ``origins`` are asked in their order.
    """
    listed, names = [], [name] if name else shipped_names("cards")
    for card in sorted(map(load_card, names), key=lambda card: (card.task, card.id)):
        manifests = (root / "prepared" / card.id).glob("[!.]*/manifest.json")  # only what is complete has such a name
        listed.append(
            {
                "name": card.id,
                **card.model_dump(include={"title", "task", "labels", "sizes", "licence"}),
                "languages": [] if card.labelled else [card.source_language, card.target_language],
                "texts": card.texts or 0,
                "origins": ["built in"] if card.built_in else list(card.ways or ("local",)),
                "divided": list(card.divide.places if card.divide else ()),
                "fetched": any((root / "raw" / card.id).glob("[!.]*")),
                "prepared": sorted(path.parent.name for path in manifests),
            }
        )
    return listed


def find_card(name_or_path: str) -> Path:
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        return path
    known = shipped_names("cards")
    if name_or_path in known:
        return shipped("cards") / f"{name_or_path}.yaml"
    raise DataError(
        f"no dataset card {name_or_path!r}{nearest(name_or_path, known)}; phmctl prepare-data --list shows all\n"
        "for a corpus of your own: phmctl prepare-data NAME --train SRC TGT --valid SRC TGT --test SRC TGT\n"
        "of labelled text: phmctl prepare-data NAME --table train=FILE --table valid=FILE --text COLUMN --label COLUMN"
    )
