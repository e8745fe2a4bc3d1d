"""Rows of text, whatever a file looks like: what readers yield, and how one source's rows become several splits."""

import hashlib
import random
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, Protocol

from phmctl.data.card import Divide, Shuffled

UNKNOWN = -1  # an extra that is not known
_NOTHING: Mapping[str, int] = MappingProxyType({})


class Row(NamedTuple):
    """A pair of sentences, or a labelled example.

    Attributes:
        texts: source and target; of an example its one text, or two.
        label: an example's class by name; None where it has none.
        extras: whole numbers that come with an example, :data:`UNKNOWN` where they are not known.
        place: the file and the line, or the row, for messages; of parallel files it is not kept.
        whole: False for what stands for a row that could not be read; it has neither texts nor a label.
    """

    texts: tuple[str, ...]
    label: str | None = None
    extras: Mapping[str, int] = _NOTHING
    place: tuple[str, int] = ("", 0)
    whole: bool = True

    def named(self) -> str:
        """Return its place in words."""
        return f"{self.place[0]}, line {self.place[1]}"


class RowSource(Protocol):
    """Rows that can be iterated any number of times."""

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows in order; raises :class:`DataError` where a file is not what it should be."""
        ...  # pragma: no cover


@dataclass(frozen=True)
class SourceFile:
    """A file of a corpus, and what is read from it: a split's ``source``, its ``target``, ``pairs`` or ``rows``."""

    path: Path
    split: str
    side: str


def same_text(line: str) -> str:
    """Return what two lines have in common that differ only in case, in Unicode form, or in white space."""
    return "".join(unicodedata.normalize("NFC", line).casefold().split())


def same_texts(texts: Iterable[str]) -> bytes:
    """Return what rows have in common whose texts are the same in the sense of :func:`same_text`, to digest it."""
    return "\n".join(map(same_text, texts)).encode("utf-8")


# ---------------------------------------------------------------------------------------------------- divisions


@dataclass(frozen=True)
class HoldOut:
    """Every `period`-th row of another source, or all the others: a validation set taken out of a train set.

    Attributes:
        rows: the whole, numbered from 1.
        period: how often a row is held out.
        held: yield those held out (True) or the rest (False).
        places: which of every `period` rows; the first is 1, and 0 or `period` the last.
    """

    rows: RowSource
    period: int
    held: bool
    places: tuple[int, ...] = (0,)

    def __iter__(self) -> Iterator[Row]:
        """Yield one part of the rows."""
        places = {place % self.period for place in self.places}
        for number, row in enumerate(self.rows, start=1):
            if (number % self.period in places) is self.held:
                yield row


def held_out_of_train(
    splits: Mapping[str, RowSource], divide: Divide, rows: str
) -> tuple[dict[str, HoldOut], dict[str, str]]:
    """Hold the splits that a corpus lacks out of train: always the same rows, whatever the source.

    Args:
        splits: what there is, train among it. A split that is there already is not made.
        divide: which rows are for valid and test.
        rows: what the rows are called.

    Returns:
        train and the splits that are made, and in words which rows those are; both empty where none is to be made.
    """
    places = {split: place for split, place in divide.places.items() if split not in splits}
    if not places:
        return {}, {}
    whole, period = splits["train"], divide.period
    made = {
        "train": HoldOut(whole, period, held=False, places=tuple(places.values())),
        **{split: HoldOut(whole, period, held=True, places=(place,)) for split, place in places.items()},
    }
    return made, {
        split: f"{rows} {place:,}, {place + period:,}, {place + 2 * period:,}, ..." for split, place in places.items()
    }


@dataclass(frozen=True)
class Joined:
    """The rows of several sources, one after another."""

    sources: Sequence[RowSource]

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows of each source in order."""
        return chain.from_iterable(self.sources)


@dataclass(frozen=True)
class TurnedRound:
    """Pairs of which the target comes first."""

    pairs: RowSource

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows in order, their texts swapped."""
        return (row._replace(texts=row.texts[::-1]) for row in self.pairs)


@dataclass(frozen=True)
class TextShare:
    """The rows whose texts' digest falls in some of `of` equal shares."""

    rows: RowSource
    of: int
    shares: range

    def __iter__(self) -> Iterator[Row]:
        """Yield one part of the rows."""
        return (row for row in self.rows if share_of(row.texts, self.of) in self.shares)


def share_of(texts: Sequence[str], of: int) -> int:
    """Return the share that texts fall in; those that differ only in case or white space fall in the same."""
    digest = hashlib.sha256(same_texts(texts)).digest()
    return int.from_bytes(digest[:8], "big") % of


class Shuffle:
    """Which part each row of a source belongs to, after Python's shuffle of all of them."""

    def __init__(self, rows: RowSource, shuffled: Shuffled) -> None:
        self.rows = rows
        self._shuffled = shuffled

    @cached_property
    def owners(self) -> bytearray:
        """The number of each row's part: train 0, valid 1, test 2. The source is counted once for it."""
        places = list(range(sum(1 for _ in self.rows)))
        random.Random(self._shuffled.seed).shuffle(places)
        train = int(len(places) * self._shuffled.train)
        valid = train + int(len(places) * self._shuffled.valid)
        owners = bytearray(len(places))
        for position, place in enumerate(places):
            owners[place] = (position >= train) + (position >= valid)
        return owners


@dataclass(frozen=True)
class Dealt:
    """One part of a shuffle, in the order of the file; `equal` names two extras that must be the same in its rows."""

    shuffle: Shuffle
    part: int
    equal: tuple[str, str] | None = None

    def __iter__(self) -> Iterator[Row]:
        """Yield one part of the rows."""
        for owner, row in zip(self.shuffle.owners, self.shuffle.rows, strict=True):
            if owner == self.part and (not self.equal or row.extras[self.equal[0]] == row.extras[self.equal[1]]):
                yield row
