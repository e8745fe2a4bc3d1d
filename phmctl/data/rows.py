"""Rows of text, whatever a file looks like: what readers yield, and how one source's rows become several splits."""

import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial, wraps
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, ParamSpec, Protocol

from phmctl.data.card import Divide

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
        return f"{self.place[0]}, line {self.place[1]}"


class RowSource(Protocol):
    """Rows that can be iterated any number of times."""

    def __iter__(self) -> Iterator[Row]: ...  # pragma: no cover


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
