"""Rows of text as readers yield them, and the functions that divide or change a corpus' rows."""

import hashlib
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial, wraps
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple, ParamSpec, Self

from phmctl.errors import DataError

UNKNOWN = -1  # value of an extra that is not known
_NO_EXTRAS: Mapping[str, int] = MappingProxyType({})

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
    extras: Mapping[str, int] = _NO_EXTRAS  # integers by name, such as the number of attractors
    location: Location = Location("", 0)  # not set for parallel files
    readable: bool = True  # False for a malformed row, whose texts are empty


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


@dataclass(frozen=True)
class SourceFile:
    """A file of a corpus, the split it belongs to, and its content: ``source``, ``target``, or ``rows`` for a table."""

    path: Path
    split: str
    side: str


def normalised_text(line: str) -> str:
    """Return a line without its case, Unicode form and white space, to compare lines regardless of these."""
    return "".join(unicodedata.normalize("NFC", line).casefold().split())


# ---------------------------------------------------------------------------------------------------- changes of rows


@repeatable
def concatenate(sources: Iterable[RowSource]) -> Iterator[Row]:
    return chain.from_iterable(sources)


@repeatable
def swap_sides(rows: RowSource) -> Iterator[Row]:
    return (row._replace(texts=row.texts[::-1]) for row in rows)


@repeatable
def append_copies(rows: RowSource) -> Iterator[Row]:
    """Yield all pairs, then each target as a pair with itself, so that a model learns to keep text as it is."""
    yield from rows
    yield from (row._replace(texts=(row.texts[1], row.texts[1])) for row in rows)


@repeatable
def select_periodic(
    rows: RowSource, period: int, numbers: Collection[int], *, complement: bool = False
) -> Iterator[Row]:
    """Yield rows p, p + period, p + 2 period, … for each p in `numbers`, counted from 1; or all other rows."""
    remainders = {number % period for number in numbers}
    for number, row in enumerate(rows, start=1):
        if (number % period in remainders) != complement:
            yield row


@dataclass(frozen=True)
class HoldOut:
    """Shares of train that become valid and test: ``1000,1000`` rows, or ``5%,5%`` of them; one value makes valid only.

    The rows are chosen by a digest of their first text, so that rows with equal sources stay in one split, and the same
    corpus is always divided in the same way. A share can exceed its size by the last source's further rows.
    """

    text: str
    sizes: tuple[float, ...]  # rows, or fractions below 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the shares that an option names. Raises DataError."""
        match = re.fullmatch(r"(\d+)(?:,(\d+))?|(\d+(?:\.\d+)?)%(?:,(\d+(?:\.\d+)?)%)?", text.replace(" ", ""))
        numbers = [] if match is None else [float(number) for number in match.groups() if number is not None]
        percent = "%" in text
        if not numbers or min(numbers) <= 0 or (percent and sum(numbers) >= 100):
            raise DataError(f"--split {text}: expected rows of valid and test, 1000,1000, or shares of train, 5%,5%")
        return cls(text, tuple(number / 100 for number in numbers) if percent else tuple(numbers))

    def divide(self, rows: RowSource) -> Splits:
        """Return train, valid and, with two sizes, test. Raises DataError if nothing is left for train."""
        names = ("valid", "test")[: len(self.sizes)]

        @cache  # counting the sources takes a pass over the files
        def split_of() -> dict[bytes, str]:
            counts = Counter(_source_digest(row) for row in rows if row.readable)
            total = counts.total()
            order = iter(sorted(counts))
            chosen: dict[bytes, str] = {}
            for name, size in zip(names, self.sizes, strict=True):
                wanted = size * total if size < 1 else size
                while wanted > 0 and (digest := next(order, None)) is not None:
                    chosen[digest] = name
                    wanted -= counts[digest]
            if len(chosen) == len(counts):
                raise DataError(f"--split {self.text} leaves none of the {total:,} rows for train; take fewer")
            return chosen

        @repeatable
        def rows_of(split: str) -> Iterator[Row]:
            for row in rows:
                if split_of().get(_source_digest(row), "train") == split:
                    yield row

        return {name: rows_of(name) for name in ("train", *names)}


def _source_digest(row: Row) -> bytes:
    return hashlib.sha256(normalised_text(row.texts[0]).encode("utf-8")).digest()[:8]


# ------------------------------------------------------------------------------------------- subject-verb agreement

Division = tuple[Splits, dict[str, str]]  # splits, and for each split made from train a description of its rows


def agreement(splits: Mapping[str, RowSource]) -> Division:
    """Add the number of attractors to Linzen's simplified files; the name of a test file contains it."""
    return {name: _add_attractors(rows) for name, rows in splits.items()}, {}


@repeatable
def _add_attractors(rows: RowSource) -> Iterator[Row]:
    for row in rows:
        stem, _, suffix = Path(row.location.file).name.removesuffix(".gz").rpartition(".")
        is_numbered = stem == "numpred.test" and suffix.isdecimal()
        yield row._replace(extras={"attractors": int(suffix) if is_numbered else UNKNOWN})


def agreement_resplit(splits: Mapping[str, RowSource]) -> Division:
    """Divide the simplified files' rows 80/10/10 by a digest of the prefix, so that equal prefixes stay together."""
    rows = _add_attractors(splits["train"])

    @repeatable
    def with_digits(*digits: int) -> Iterator[Row]:
        for row in rows:
            text = "\n".join(map(normalised_text, row.texts))
            digest = hashlib.sha256(text.encode("utf-8")).digest()
            if int.from_bytes(digest[:8], "big") % 10 in digits:
                yield row

    descriptions = dict.fromkeys(("valid", "test"), "1 of 10 shares of the texts, by their SHA-256")
    return {"train": with_digits(*range(8)), "valid": with_digits(8), "test": with_digits(9)}, descriptions


def agreement_table(splits: Mapping[str, RowSource]) -> Division:
    """Divide the original table as Tensor2Tensor does and cut each sentence before its verb.

    The rows are shuffled by Python's generator with seed 1: 9 % are train, 1 % valid. Of the remaining rows, those
    whose intervening nouns are all attractors are test.
    """
    rows = _cut_before_verb(splits["train"])

    @cache  # counting the rows takes a pass over the file
    def assignment() -> bytearray:
        """Return 0 (train), 1 (valid) or 2 (test) for each row."""
        order = list(range(sum(1 for _ in rows)))
        random.Random(1).shuffle(order)
        train_size, valid_size = int(len(order) * 0.09), int(len(order) * 0.01)
        assigned = bytearray(len(order))
        for row in order[train_size:]:
            assigned[row] = 1
        for row in order[train_size + valid_size :]:
            assigned[row] = 2
        return assigned

    @repeatable
    def assigned_to(number: int) -> Iterator[Row]:
        for assigned, row in zip(assignment(), rows, strict=True):
            all_attractors = row.extras["intervening"] == row.extras["attractors"]
            if assigned == number and (number < 2 or all_attractors):
                yield row

    descriptions = {
        "valid": "1% of the shuffled rows",
        "test": "the rest of the shuffled rows with intervening = attractors",
    }
    return {"train": assigned_to(0), "valid": assigned_to(1), "test": assigned_to(2)}, descriptions


@repeatable
def _cut_before_verb(rows: RowSource) -> Iterator[Row]:
    for row in rows:
        words = row.texts[0].split(" ")
        extras = dict(row.extras)
        verb = extras.pop("verb")
        if not 1 <= verb <= len(words):
            raise DataError(f"{row.location}: verb index {verb}, but the sentence has {len(words)} words")
        yield row._replace(texts=(" ".join(words[: verb - 1]),), extras=extras)


DIVISIONS = {divide.__name__: divide for divide in (agreement, agreement_resplit, agreement_table)}
