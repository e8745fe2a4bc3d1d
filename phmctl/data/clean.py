"""Cleaning: what a line looks like before it is tokenized, and which rows are left out, with counts.

Valid and test keep every row, whatever it is: N lines in, N lines out. Only an example without a label, or one that
could not be read, is dropped from them too: nothing can be scored on it. Train loses rows with an empty text, rows that
stand in valid or test, whatever their label, and, once tokenized, those that are too long or too unequal.
"""

import html
import re
import unicodedata
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from typing import Any

from phmctl.data.card import Cleaning
from phmctl.data.readers import BLANKS
from phmctl.data.rows import Row, RowSource, hold_out, same_text
from phmctl.errors import DataError, nearest

# Why a train row is dropped: the keys of the manifest's counts.
EMPTY, HELD_OUT, OVER_LONG, LOPSIDED = "empty_side", "in_valid_or_test", "over_long", "length_ratio"
ODD_ROW, UNLABELLED, EMPTY_TEXT = "odd_row", "no_label", "empty_text"  # the last two of labelled text
REASONS = (ODD_ROW, UNLABELLED, EMPTY_TEXT, EMPTY, HELD_OUT, OVER_LONG, LOPSIDED)  # in the order of the counts
CUT = "cut"  # a labelled text of valid or test that is kept in part
SAME_SIDES = "same_sides"  # a pair of the same text twice: counted but kept
SIDE_HELD_OUT = ("source_in_valid_or_test", "target_in_valid_or_test")  # a train pair of which one side stands there

# What Moses' escape-special-chars.perl writes, and nothing else: "&copy" in a text is meant.
_ENTITY = re.compile("&(?:amp|lt|gt|apos|quot|#124|#91|#93);")


def in_words(dropped: Mapping[str, int]) -> str:
    parts = (f"{number:,} {reason}".replace("_", " ") for reason, number in dropped.items())
    return ", ".join(parts) or "nothing dropped"


def clean_line(line: str, settings: Cleaning) -> str:
    """Return a line as it is tokenized and, of valid and test, stored: no blanks around it, and as the card says.

    Entities are Moses' eight; normalisation is Unicode NFC with every run of white space made one space. Lower-casing
    is the tokenizer's, so that references keep their case.
    """
    if settings.entities == "decode" and "&" in line:
        line = _ENTITY.sub(lambda match: html.unescape(match[0]), line)
    if settings.normalise:
        return " ".join(unicodedata.normalize("NFC", line).split())
    return line.strip(BLANKS)


def cut(tokens: Sequence[int], longest: int, settings: Cleaning) -> Sequence[int]:
    """Return the tokens of a text that stay if it is too long: the first or, as the card says, the last."""
    return tokens[:longest] if settings.keep == "start" else tokens[-longest:]


@dataclass
class HeldOut:
    """The texts of valid and test, to find them again in train; as digests, since a test set may be large.

    Two lines are the same if they differ only in case, in Unicode form, or in white space: tokenised text matches raw.
    Where rows are symmetric the order of their texts means nothing, so that they are found again swapped; `sides`:
    each text is to be found by itself, too.
    """

    symmetric: bool = False
    sides: bool = False
    seen: set[bytes] = field(default_factory=set)

    def add(self, texts: Sequence[str]) -> None:
        self.seen.update(self._keys(texts))

    def find(self, texts: Sequence[str]) -> list[bool]:
        """Return whether a row stands in valid or test; with `sides`, each text too."""
        return [key in self.seen for key in self._keys(texts)]

    def _keys(self, texts: Sequence[str]) -> list[bytes]:
        same = [same_text(text) for text in texts]
        parts = [["row", *(sorted(same) if self.symmetric else same)]]
        parts += [[str(side), text] for side, text in enumerate(same) if self.sides]
        return [blake2b("\n".join(part).encode("utf-8"), digest_size=12).digest() for part in parts]


@dataclass
class CleanRows:
    """A split, cleaned and judged. Can be iterated again; the counts are of the last time.

    Parallel and labelled text differ in this: of an over-long labelled text of valid or test a part stays, a sentence
    stays whole. The end of sentence that a model reads is none of the `max_tokens`.
    """

    rows: RowSource
    settings: Cleaning
    max_tokens: int
    labels: Sequence[str] | None = None  # None: of parallel text
    held_out: HeldOut | None = None  # None: this is valid or test

    def __post_init__(self) -> None:
        self.train, self.labelled = self.held_out is not None, self.labels is not None
        self._numbers: Mapping[str | None, int] = {label: number for number, label in enumerate(self.labels or ())}
        self._begin()

    def _begin(self) -> None:
        self.read = self.kept = 0
        self.dropped: Counter[str] = Counter()  # by reason
        self.noted: Counter[str] = Counter()  # kept although something is unusual: by what it is
        self.classes: Counter[str] = Counter()  # the examples of each class, of those that stay

    def __iter__(self) -> Iterator[Row]:
        """Yield the rows that stay, their lengths not yet judged; raises :class:`DataError` for unknown labels."""
        self._begin()
        labels = self.labels
        for row in self.rows:
            self.read += 1
            if not row.whole or (labels is not None and row.label is None):
                self.dropped[UNLABELLED if row.whole else ODD_ROW] += 1
                continue
            if labels is not None and row.label not in self._numbers:
                shown, guess = ", ".join(labels[:8]), nearest(str(row.label), labels)
                shown += f", ... ({len(labels)} in all)" if len(labels) > 8 else ""
                raise DataError(f"{row.named()}: unknown label {row.label!r}{guess}; known: {shown}")
            cleaned = row._replace(texts=tuple(clean_line(text, self.settings) for text in row.texts))
            if self._stays(cleaned):
                yield cleaned

    def counts(self) -> dict[str, Any]:
        """Return what the manifest says of the rows, and of labelled text of the classes."""
        dropped = {reason: self.dropped[reason] for reason in REASONS if self.dropped[reason]}
        noted = {what: self.noted[what] for what in sorted(self.noted) if self.noted[what]}
        classes = {"labels": dict(sorted(self.classes.items()))} if self.labelled else {}
        return {"read": self.read, "kept": self.kept, "dropped": dropped, "noted": noted, **classes}

    def sample(self, period: int) -> "CleanRows":
        """Return the first of every `period` rows of the files, cleaned and judged alike."""
        return self if period == 1 else replace(self, rows=hold_out(self.rows, period, (1,), held=True))

    def number(self, row: Row) -> int:
        return self._numbers[row.label]

    def fit(self, row: Row, tokens: Sequence[Sequence[int]]) -> Sequence[Sequence[int]] | None:
        """Judge a row by its texts' tokens, count the verdict, and return what is stored: None if it is left out.

        The end of sentence counts in the ratio, which spares very short pairs: one token against two is 2 : 3.
        """
        ratio = self.settings.max_ratio
        longest, shortest = max(map(len, tokens)), min(map(len, tokens))
        stays = True
        if longest > self.max_tokens:
            stays = self._object(CUT if self.labelled and not self.train else OVER_LONG, keep=not self.train)
        elif self.train and ratio > 0 and longest + 1 > ratio * (shortest + 1):
            stays = self._object(LOPSIDED, keep=False)
        if not stays:
            return None
        self.kept += 1
        if not self.labelled:
            return tokens
        self.classes[str(row.label)] += 1
        return [cut(each, self.max_tokens, self.settings) for each in tokens]

    def _stays(self, row: Row) -> bool:
        if not self.labelled:
            self.noted[SAME_SIDES] += row.texts[0] == row.texts[1] != ""
        if not all(text.strip() for text in row.texts):
            return self._object(EMPTY_TEXT if self.labelled else EMPTY, keep=not self.train)
        if self.held_out is None:
            return True
        again, *sides = self.held_out.find(row.texts)
        if again:
            return self._object(HELD_OUT, keep=self.settings.duplicates == "keep")
        for what, found in zip(SIDE_HELD_OUT, sides, strict=False):
            self.noted[what] += found
        return True

    def _object(self, reason: str, *, keep: bool) -> bool:
        """Count an objection to a row, and return whether it stays all the same."""
        (self.noted if keep else self.dropped)[reason] += 1
        return keep
