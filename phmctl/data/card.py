"""Dataset cards: what a corpus is, where it lies, and how its files are read."""

import json
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import AfterValidator, Field, model_validator

from phmctl.data.readers import Format
from phmctl.errors import DataError, nearest
from phmctl.files import sha256_text
from phmctl.recipe.documents import read_document
from phmctl.recipe.sections import PositiveInt, Section, Vocabulary
from phmctl.shipped import shipped, shipped_names

SplitName = Literal["train", "valid", "test"]
SPLITS: tuple[SplitName, ...] = ("train", "valid", "test")


def _below(name: str) -> str:
    """Refuse a path that leads out of its folder, or that a terminal would not show as it is."""
    parts = name.split("/")
    if {"", ".", ".."} & {*parts} or "\\" in name or not name.isprintable():
        raise ValueError(f"{name!r} is no plain name: it should lie below its folder, with '/' between parts")
    return name


def _plain(name: str) -> str:
    """Refuse what is more than the name of a file that is shown."""
    if "/" in name or name.startswith("."):
        raise ValueError(f"{name!r} is no plain name: no '/' and no dot at its start")
    return _below(name)


def _address(url: str) -> str:
    """Refuse what is no address that the download knows."""
    if not url.startswith(("http://", "https://", "file://")):
        raise ValueError(f"{url!r} should begin with https://, http:// or file://")
    return url


def _hub_id(name: str) -> str:
    """Refuse what ``datasets`` takes for a kind of file, such as ``text``."""
    if "/" not in name:
        raise ValueError(f"{name!r} should be owner/name, or the path of a folder")
    return name


FileNames = tuple[Annotated[str, AfterValidator(_below)], ...]


class SplitFiles(Section):
    """One split's files: two sides, or pairs in one file. Names are relative; each may also end in ``.gz``."""

    format: Format = "text"
    source: FileNames = ()  # read one after another, in this order
    target: FileNames = ()
    pairs: FileNames = ()  # source<TAB>target in one file
    columns: tuple[int, int] = (0, 1)  # of `pairs`, counted from 0
    hold_out: Literal["take", "leave"] | None = None  # every `period`-th pair: only those, or all the others
    period: Annotated[int, Field(ge=2)] = 23

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if bool(self.pairs) == bool(self.source) or len(self.source) != len(self.target):
            raise ValueError("wants either 'pairs', or 'source' and 'target' with as many files each")
        if min(self.columns) < 0:
            raise ValueError("'columns' are counted from 0")
        return self

    @property
    def sides(self) -> dict[str, FileNames]:
        """The file names by what is read from them: ``source``, ``target``, or ``pairs`` of both."""
        return {"source": self.source, "target": self.target, "pairs": self.pairs}

    @property
    def names(self) -> FileNames:
        """All file names of the split."""
        return tuple(name for names in self.sides.values() for name in names)


class Layout(Section):
    """One way in which people have a corpus on disk."""

    name: str
    scattered: bool = False  # several archives: each file may lie in a subfolder of its own
    splits: dict[SplitName, SplitFiles]


class Columns(Section):
    """Where a hub's row holds the two sides; ``translation.de`` is the field `de` of the column `translation`."""

    source: str
    target: str


class HubPlace(Section):
    """A dataset on the Hugging Face hub, or a local folder that ``datasets`` can load."""

    id: Annotated[str, AfterValidator(_hub_id)]
    config: str | None = None
    folder: Annotated[str, AfterValidator(_below)] | None = None  # the folder in the repository that holds the files
    revision: str | None = None


class Hub(HubPlace):
    """Where the hub has sentence pairs."""

    splits: dict[SplitName, str]
    columns: Columns


class Url(Section):
    """A file on a server."""

    url: Annotated[str, AfterValidator(_address)]  # of a file:// only what lies below the card's own folder
    file: Annotated[str, AfterValidator(_plain)]  # its name in the cache
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None  # None: not known
    extract: bool = False  # a tar or zip archive
    unpacked: Annotated[int, Field(ge=1)] | None = None  # bytes of its content, at most; None: what texts come to
    members: PositiveInt = 100_000  # of the archive, at most


class Divide(Section):
    """How a set without valid or test of its own is divided: which of every `period` pairs are held out for them."""

    period: Annotated[int, Field(ge=2)]
    valid: PositiveInt | None = None  # the pair with this number, counted from 1, and every `period`-th after it
    test: PositiveInt | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        places = self.places.values()
        if not places or max(places) > self.period or len(set(places)) < len(places):
            raise ValueError("wants 'valid', 'test' or both: two different numbers up to 'period'")
        return self

    @property
    def places(self) -> dict[SplitName, int]:
        """The number of each held-out split's first pair."""
        given: dict[SplitName, int | None] = {"valid": self.valid, "test": self.test}
        return {split: place for split, place in given.items() if place is not None}


class TextCleaning(Section):
    """What the text wants before it is tokenized."""

    lowercase: bool = False
    entities: Literal["decode", "keep"] = "keep"  # Moses' &apos; and the like
    normalise: bool = False  # Unicode NFC, and blanks of all kinds to one


class Cleaning(TextCleaning):
    """What the corpus' text wants, whatever the recipe: settings for the preparation."""

    max_ratio: Annotated[float, Field(ge=0)] = 0.0  # longer side / shorter side in tokens, train only; 0 is off


class Defaults(Section):
    """What `prepare-data` takes for the recipe's data section where nothing else is said."""

    tokenizer: Literal["bpe", "word"] = "bpe"
    vocabulary: Vocabulary = 8000
    joint: bool = True
    max_tokens: PositiveInt = 256


class CardBase(Section):
    """What every dataset card says, whatever is learned from its data."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9._-]*$")]
    title: str
    description: str
    licence: str
    homepage: str = ""
    divide: Divide | None = None  # for what has no valid or test of its own
    urls: tuple[Url, ...] = ()
    prefer: Literal["hub", "urls"] = "urls"  # which to ask first where both are given

    @property
    def ways(self) -> tuple[Literal["hub", "urls"], ...]:
        """Where the network has it, in the order in which they are asked."""
        order: tuple[Literal["hub", "urls"], ...] = ("hub", "urls") if self.prefer == "hub" else ("urls", "hub")
        return tuple(way for way in order if getattr(self, way))

    @property
    def here(self) -> dict[str, Path]:
        """What the card would have read on this machine, by its own words."""
        from urllib.request import Request, url2pathname  # brings ssl, for which nobody who answers lines should wait

        files = [url.url for url in self.urls if url.url.startswith("file:")]
        found = {url: Path(url2pathname(Request(url).selector)) for url in files}
        hub: HubPlace | None = getattr(self, "hub", None)
        return found | ({hub.id: Path(hub.id)} if hub and Path(hub.id).is_dir() else {})

    @property
    def digest(self) -> str:
        """The SHA-256 of what decides on the text: of all but prose, sizes and proposals."""
        prose = {"title", "description", "licence", "homepage", "sizes", "defaults"}
        return _digest(self.model_dump(mode="json", exclude=prose, exclude_defaults=True))

    @property
    def urls_digest(self) -> str:
        """The SHA-256 of what the URLs are and how their files are called: the name of their place in the cache."""
        return _digest([url.model_dump(mode="json", exclude={"unpacked", "members"}) for url in self.urls])


class Card(CardBase):
    """A dataset card of sentence pairs to translate."""

    task: Literal["translation"] = "translation"
    source_language: str
    target_language: str
    sizes: dict[SplitName, int] = Field(default_factory=dict)  # published pairs a split; empty where they are not known
    defaults: Defaults = Defaults()
    cleaning: Cleaning = Cleaning()
    built_in: bool = False  # generated, nothing to fetch
    local: tuple[Layout, ...] = ()
    hub: Hub | None = None

    @property
    def direction(self) -> str:
        """Source and target language, as in ``de-en``."""
        return f"{self.source_language}-{self.target_language}"

    @property
    def lowercase(self) -> bool:
        """Whether the text is lower-cased."""
        return self.cleaning.lowercase


AnyCard = TypeVar("AnyCard", bound=CardBase)


def _digest(content: Any) -> str:
    return sha256_text([json.dumps(content, sort_keys=True)])


def card_names() -> list[str]:
    """Return the ids of the shipped cards, sorted."""
    return shipped_names("cards")


def card_task(name_or_path: str) -> str:
    """Return which task a card's data is for.

    Raises:
        DataError: there is no such card (with the nearest name), or its file is no mapping.
    """
    return str(read_document(find_card(name_or_path), DataError).content.get("task", "translation"))


def load_card(name_or_path: str) -> Card:
    """Load a card by its id or by the path of a YAML file.

    Raises:
        DataError: there is no such card (with the nearest name), or it is not valid (all problems, a line each).
    """
    return read_card(name_or_path, Card)


def read_card(name_or_path: str, kind: type[AnyCard]) -> AnyCard:
    """Load a card of a kind. Another's card should not have this machine's files read: only those beside it.

    Raises:
        DataError: there is no such card, it is not valid, or it names a file of this machine out of its folder.
    """
    path = find_card(name_or_path)
    card = read_document(path, DataError).validate(kind, DataError)
    for words, place in card.here.items():
        if not place.resolve().is_relative_to(path.parent.resolve()):
            raise DataError(
                f"{path}: {words} lies outside the card's folder; a card may name files of this machine only below "
                "its own\nmove the card there, or name the folder of the files: --source DIR"
            )
    return card


def find_card(name_or_path: str) -> Path:
    """Return the file of a card.

    Raises:
        DataError: there is no such card (with the nearest name).
    """
    path = Path(name_or_path)
    if path.suffix in {".yaml", ".yml"} and path.is_file():
        return path
    known = card_names()
    if name_or_path in known:
        return shipped("cards") / f"{name_or_path}.yaml"
    raise DataError(
        f"no dataset card {name_or_path!r}{nearest(name_or_path, known)}; phmctl prepare-data --list shows all\n"
        "for a corpus of your own name its files: --train SRC TGT --valid SRC TGT --test SRC TGT,\n"
        "or of labelled text --table train=FILE --table valid=FILE --text COLUMN --label COLUMN"
    )
