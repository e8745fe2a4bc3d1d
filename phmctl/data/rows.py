"""Rows of text, whatever a file looks like: what readers yield, and how one source's rows become several splits."""

import hashlib
import random
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, ParamSpec

from phmctl.errors import DataError

UNKNOWN = -1  # an extra that is not known
_NOTHING: Mapping[str, int] = MappingProxyType({})

P = ParamSpec("P")


class Row(NamedTuple):
    """A pair of sentences, or a labelled example. One that could not be read is not `whole`: it has no texts."""

    texts: tuple[str, ...]
    label: str | None = None  # an example's class by name
    extras: Mapping[str, int] = _NOTHING  # whole numbers that come with a row
    place: tuple[str, int] = ("", 0)  # the file and the line, for messages; of parallel files it is not kept
    whole: bool = True

    def named(self) -> str:
        return f"{self.place[0]}, line {self.place[1]}"


RowSource = Iterable[Row]  # that can be iterated any number of times
Splits = dict[str, RowSource]


@dataclass(frozen=True)
class _Repeatable:
    generate: Callable[[], Iterator[Row]]

    def __iter__(self) -> Iterator[Row]:
        return self.generate()


def repeatable(generator: Callable[P, Iterator[Row]]) -> Callable[P, RowSource]:
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
    return chain.from_iterable(sources)


@repeatable
def turned_round(rows: RowSource) -> Iterator[Row]:
    return (row._replace(texts=row.texts[::-1]) for row in rows)


@repeatable
def with_copies(rows: RowSource) -> Iterator[Row]:
    """Yield pairs, and after them each target as a translation of itself: what is not surely changed, is left."""
    yield from rows
    yield from (row._replace(texts=(row.texts[1], row.texts[1])) for row in rows)


@repeatable
def hold_out(rows: RowSource, period: int, places: Iterable[int], *, held: bool) -> Iterator[Row]:
    """Yield the rows in these places of every `period`, the first of which is 1 (`held`), or all the others."""
    chosen = {place % period for place in places}
    return (row for number, row in enumerate(rows, start=1) if (number % period in chosen) is held)


Made = tuple[Splits, dict[str, str]]


def agreement(splits: Mapping[str, RowSource]) -> Made:
    """Linzen's simplified files: the name of a test set says how many attractors its examples have."""
    return {name: _with_attractors(rows) for name, rows in splits.items()}, {}


@repeatable
def _with_attractors(rows: RowSource) -> Iterator[Row]:
    for row in rows:
        stem, _, number = Path(row.place[0]).name.removesuffix(".gz").rpartition(".")
        known = int(number) if stem == "numpred.test" and number.isdecimal() else UNKNOWN
        yield row._replace(extras={"attractors": known})


def agreement_resplit(splits: Mapping[str, RowSource]) -> Made:
    """The simplified files mixed and divided 80/10/10 by the prefix' own digest: equal prefixes stay together."""

    @repeatable
    def of_shares(*wanted: int) -> Iterator[Row]:
        for row in _with_attractors(splits["train"]):
            digest = hashlib.sha256("\n".join(map(same_text, row.texts)).encode("utf-8")).digest()
            if int.from_bytes(digest[:8], "big") % 10 in wanted:
                yield row

    words = dict.fromkeys(("valid", "test"), "1 of 10 shares of the texts, by their SHA-256")
    return {"train": of_shares(*range(8)), "valid": of_shares(8), "test": of_shares(9)}, words


def agreement_table(splits: Mapping[str, RowSource]) -> Made:
    """The original table: words in front of the verb, divided as Tensor2Tensor does.

    Python's shuffle with seed 1; 9 % are train, 1 % valid, and of the rest those are test whose intervening nouns are
    all attractors.
    """
    whole = _before_the_verb(splits["train"])

    @cache  # counting the source takes a pass over it
    def owners() -> bytearray:
        places = list(range(sum(1 for _ in whole)))
        random.Random(1).shuffle(places)
        train = int(len(places) * 0.09)
        valid = train + int(len(places) * 0.01)
        owners = bytearray(len(places))
        for position, place in enumerate(places):
            owners[place] = (position >= train) + (position >= valid)
        return owners

    @repeatable
    def dealt(part: int) -> Iterator[Row]:
        for owner, row in zip(owners(), whole, strict=True):
            if owner == part and (part < 2 or row.extras["intervening"] == row.extras["attractors"]):
                yield row

    words = {"valid": "1% of the shuffled rows", "test": "the rest of the shuffled rows with intervening = attractors"}
    return {"train": dealt(0), "valid": dealt(1), "test": dealt(2)}, words


@repeatable
def _before_the_verb(rows: RowSource) -> Iterator[Row]:
    for row in rows:
        words, extras = row.texts[0].split(" "), dict(row.extras)
        verb = extras.pop("verb")
        if not 1 <= verb <= len(words):
            raise DataError(f"{row.named()}: the verb is word {verb}, but there are {len(words)} words")
        yield row._replace(texts=(" ".join(words[: verb - 1]),), extras=extras)


CORPORA = {made.__name__: made for made in (agreement, agreement_resplit, agreement_table)}
