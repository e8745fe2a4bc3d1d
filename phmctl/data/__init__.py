"""Text, from files to batches: the rows of a corpus, and the special tokens, whose ids are the same everywhere."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from types import MappingProxyType
from typing import NamedTuple, ParamSpec

PAD, UNK, BOS, EOS = 0, 1, 2, 3
SPECIAL_TOKENS = ("<pad>", "<unk>", "<s>", "</s>")
UNKNOWN = -1  # value of an extra that is not known
JSON_LINES = (".jsonl", ".ndjson", ".json")
TABLES = (".tsv", ".csv", *JSON_LINES, ".tmx")  # ends of the names of files that have both sides

P = ParamSpec("P")


class Location(NamedTuple):
    """The position of a row, for error messages."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}, line {self.line}"


class Row(NamedTuple):
    """A sentence pair or a labelled example."""

    texts: tuple[str, ...]
    label: str | None = None
    extras: Mapping[str, int] = MappingProxyType({})  # integers by name, such as the number of attractors
    location: Location = Location("", 0)  # not set for parallel files
    readable: bool = True  # False for a malformed row of a card, whose texts are empty


RowSource = Iterable[Row]  # can be iterated any number of times
Splits = dict[str, RowSource]


@dataclass(frozen=True)
class _Repeatable:
    generate: Callable[[], Iterator[Row]]

    def __iter__(self) -> Iterator[Row]:
        return self.generate()


def repeatable(generator: Callable[P, Iterator[Row]]) -> Callable[P, RowSource]:
    """Make a generator function return an iterable that starts from the beginning each time."""

    @wraps(generator)
    def source(*args: P.args, **kwargs: P.kwargs) -> RowSource:
        return _Repeatable(partial(generator, *args, **kwargs))

    return source
