"""Rows of text, whatever a file looks like: what readers yield, and how one source's rows become several splits."""

import hashlib
import random
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from itertools import accumulate, chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, ParamSpec, Protocol

from phmctl.data.card import ByText, Divide, Shuffled

UNKNOWN = -1  # an extra that is not known
_NOTHING: Mapping[str, int] = MappingProxyType({})

Splits = dict[str, "RowSource"]
P = ParamSpec("P")


class Row(NamedTuple):
    """A pair of sentences, or a labelled example. One that could not be read is not `whole`: it has no texts."""

    texts: tuple[str, ...]
    label: str | None = None  # an example's class by name
    extras: Mapping[str, int] = _NOTHING  # whole numbers that come with a row
    place: tuple[str, int] = ("", 0)  # the file and the line, for messages; of parallel files it is not kept
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
class _Repeatable:
    generate: Callable[[], Iterator[Row]]

    def __iter__(self) -> Iterator[Row]:
        return self.generate()


def repeatable(generator: Callable[P, Iterator[Row]]) -> Callable[P, RowSource]:
    """Turn a generator of rows into a function that returns a source: it is run anew for each iteration."""

    @wraps(generator)
    def source(*args: P.args, **kwargs: P.kwargs) -> RowSource:
        return _Repeatable(partial(generator, *args, **kwargs))

    return source


@dataclass(frozen=True)
class SourceFile:
    """A file of a corpus, and what is read from it: a split's ``source``, its ``target``, ``pairs`` or ``rows``."""

    path: Path
    split: str
    side: str


def same_text(line: str) -> str:
    """Return what two lines have in common that differ only in case, in Unicode form, or in white space."""
    return "".join(unicodedata.normalize("NFC", line).casefold().split())


# ---------------------------------------------------------------------------------------------------- divisions


@repeatable
def joined(sources: Iterable[RowSource]) -> Iterator[Row]:
    """Yield the rows of several sources, one after another."""
    return chain.from_iterable(sources)


@repeatable
def turned_round(rows: RowSource) -> Iterator[Row]:
    """Yield pairs with the target first."""
    return (row._replace(texts=row.texts[::-1]) for row in rows)


@repeatable
def with_copies(rows: RowSource) -> Iterator[Row]:
    """Yield pairs, and after them each target as a translation of itself: what is not surely changed, is left."""
    yield from rows
    yield from (row._replace(texts=(row.texts[1], row.texts[1])) for row in rows)


@repeatable
def hold_out(rows: RowSource, period: int, places: Iterable[int] = (0,), *, held: bool) -> Iterator[Row]:
    """Yield the rows in these places of every `period`, the first of which is 1 (`held`), or all the others."""
    chosen = {place % period for place in places}
    return (row for number, row in enumerate(rows, start=1) if (number % period in chosen) is held)


def divide_train(splits: Mapping[str, RowSource], divide: Divide, rows: str) -> tuple[Splits, dict[str, str]]:
    """Hold the splits that a corpus lacks out of train: always the same rows, whatever the source.

    Returns train and the splits that are made, and in words which rows those are; both empty where none is to be made.
    """
    places = {split: place for split, place in divide.places.items() if split not in splits}
    whole, period = splits["train"], divide.period
    made = {split: hold_out(whole, period, [place], held=True) for split, place in places.items()}
    words = {
        split: f"{rows} {place:,}, {place + period:,}, {place + 2 * period:,}, ..." for split, place in places.items()
    }
    return ({"train": hold_out(whole, period, places.values(), held=False), **made} if made else {}), words


def divide_by_text(whole: RowSource, divide: ByText) -> tuple[Splits, dict[str, str]]:
    """Return the splits that the texts' digests make of one, and in words which shares those held out are."""
    shares = {"train": divide.of - divide.test - divide.valid, "valid": divide.valid, "test": divide.test}
    ends = dict(zip(shares, accumulate(shares.values()), strict=True))
    words = {name: f"{shares[name]} of {divide.of} shares of the texts, by their SHA-256" for name in ("valid", "test")}
    return {name: _text_share(whole, divide.of, range(end - shares[name], end)) for name, end in ends.items()}, words


@repeatable
def _text_share(rows: RowSource, of: int, shares: range) -> Iterator[Row]:
    """Yield the rows of some of `of` equal shares; texts that differ only in case or white space are in the same."""
    for row in rows:
        digest = hashlib.sha256("\n".join(map(same_text, row.texts)).encode("utf-8")).digest()
        if int.from_bytes(digest[:8], "big") % of in shares:
            yield row


def divide_shuffled(whole: RowSource, shuffled: Shuffled) -> tuple[Splits, dict[str, str]]:
    """Return the splits that Python's shuffle deals from one, in the file's order, and in words those held out."""

    @cache  # counting the source takes a pass over it
    def owners() -> bytearray:
        places = list(range(sum(1 for _ in whole)))
        random.Random(shuffled.seed).shuffle(places)
        train = int(len(places) * shuffled.train)
        valid = train + int(len(places) * shuffled.valid)
        owners = bytearray(len(places))
        for position, place in enumerate(places):
            owners[place] = (position >= train) + (position >= valid)
        return owners

    @repeatable
    def dealt(part: int, equal: tuple[str, str] | None = None) -> Iterator[Row]:
        for owner, row in zip(owners(), whole, strict=True):
            if owner == part and (not equal or row.extras[equal[0]] == row.extras[equal[1]]):
                yield row

    equal = shuffled.test_where_equal
    words = {"valid": f"{shuffled.valid:.0%} of the shuffled rows", "test": "the rest of the shuffled rows"}
    words["test"] += f" with {' = '.join(equal)}" if equal else ""
    return {"train": dealt(0), "valid": dealt(1), "test": dealt(2, equal)}, words
