"""Corpora that a card's words do not describe: functions from rows as they are read to splits, which the card names.

Each returns the splits that it changes or makes, and in words which rows those that it holds out of train are.
"""

import hashlib
import random
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

from phmctl.data.rows import UNKNOWN, Row, RowSource, Splits, repeatable, same_text
from phmctl.errors import DataError

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
