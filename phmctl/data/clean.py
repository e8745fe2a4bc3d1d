"""Cleaning of lines, and the selection of rows, with counts of the dropped ones.

Valid and test keep every row, so that N lines of input have N lines of output; only malformed and unlabelled examples,
which cannot be scored, are dropped. Train loses rows with an empty text, rows whose text is in valid or test, whatever
their label, and after tokenization rows that are too long or whose texts differ too much in length.
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
from phmctl.data.rows import Row, RowSource, normalised_text, select_periodic
from phmctl.errors import DataError, nearest

# Reasons for dropping a row: keys of the manifest's counts.
MALFORMED, HELD_OUT, OVER_LONG, LENGTH_RATIO = "odd_row", "in_valid_or_test", "over_long", "length_ratio"
EMPTY_SIDE = "empty_side"  # of parallel text
UNLABELLED, EMPTY_TEXT = "no_label", "empty_text"  # of labelled text
REASONS = (MALFORMED, UNLABELLED, EMPTY_TEXT, EMPTY_SIDE, HELD_OUT, OVER_LONG, LENGTH_RATIO)  # order of the counts
# Remarks on rows that are kept.
TRUNCATED = "cut"
SAME_SIDES = "same_sides"
SIDE_HELD_OUT = ("source_in_valid_or_test", "target_in_valid_or_test")

# The entities that Moses' escape-special-chars.perl writes. Others, such as "&copy", are ordinary text.
_ENTITY = re.compile("&(?:amp|lt|gt|apos|quot|#124|#91|#93);")


def describe_counts(dropped: Mapping[str, int]) -> str:
    """Return the counts of dropped rows in words: "3 empty side, 1 over long"."""
    parts = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items()]
    return ", ".join(parts) or "nothing dropped"


def clean_line(line: str, settings: Cleaning) -> str:
    """Return a line as it is tokenized and, in valid and test, stored.

    Surrounding blanks are removed; entities and Unicode are changed as the settings say. Lower-casing is left to the
    tokenizer, so that references keep their case.
    """
    if settings.entities == "decode" and "&" in line:
        line = _ENTITY.sub(lambda match: html.unescape(match[0]), line)
    if settings.normalise:
        return " ".join(unicodedata.normalize("NFC", line).split())
    return line.strip(BLANKS)


def truncate(tokens: Sequence[int], max_tokens: int, settings: Cleaning) -> Sequence[int]:
    """Return the first or, if the settings say so, the last `max_tokens` tokens."""
    return tokens[:max_tokens] if settings.keep == "start" else tokens[-max_tokens:]


@dataclass
class HeldOut:
    """The texts of valid and test as digests, to find them in train.

    Texts that differ only in case, Unicode form or white space are equal, so that tokenised text matches raw text.
    """

    symmetric: bool = False  # a row with swapped texts is equal, too
    sides: bool = False  # also compare each text by itself
    digests: set[bytes] = field(default_factory=set)

    def add(self, texts: Sequence[str]) -> None:
        self.digests.update(self._digests(texts))

    def find(self, texts: Sequence[str]) -> list[bool]:
        """Return whether a row is in valid or test and, with `sides`, whether each of its texts is."""
        return [digest in self.digests for digest in self._digests(texts)]

    def _digests(self, texts: Sequence[str]) -> list[bytes]:
        normalised = [normalised_text(text) for text in texts]
        keys = [["row", *(sorted(normalised) if self.symmetric else normalised)]]
        if self.sides:
            keys += [[str(side), text] for side, text in enumerate(normalised)]
        return [blake2b("\n".join(key).encode("utf-8"), digest_size=12).digest() for key in keys]


@dataclass
class CleanRows:
    """The cleaned and selected rows of a split. Each iteration starts the counts again.

    `max_tokens` excludes the end of sentence. An over-long labelled text of valid or test is truncated; an over-long
    sentence is kept as it is.
    """

    rows: RowSource
    settings: Cleaning
    max_tokens: int
    labels: Sequence[str] | None = None  # None for parallel text
    held_out: HeldOut | None = None  # None for valid and test

    def __post_init__(self) -> None:
        self.train = self.held_out is not None
        self.labelled = self.labels is not None
        self._label_numbers: Mapping[str | None, int] = {label: n for n, label in enumerate(self.labels or ())}
        self._reset_counts()

    def _reset_counts(self) -> None:
        self.read = self.kept = 0
        self.dropped: Counter[str] = Counter()  # by reason
        self.noted: Counter[str] = Counter()  # kept rows by remark
        self.classes: Counter[str] = Counter()  # kept examples by label

    def __iter__(self) -> Iterator[Row]:
        """Yield the cleaned rows; :meth:`fit` checks their lengths. Raises DataError for an unknown label."""
        self._reset_counts()
        for row in self.rows:
            self.read += 1
            if not row.readable:
                self.dropped[MALFORMED] += 1
            elif self.labelled and row.label is None:
                self.dropped[UNLABELLED] += 1
            else:
                self._check_label(row)
                cleaned = row._replace(texts=tuple(clean_line(text, self.settings) for text in row.texts))
                if self._is_kept(cleaned):
                    yield cleaned

    def counts(self) -> dict[str, Any]:
        """Return the manifest's counts of the split."""
        counts: dict[str, Any] = {
            "read": self.read,
            "kept": self.kept,
            "dropped": {reason: self.dropped[reason] for reason in REASONS if self.dropped[reason]},
            "noted": {remark: count for remark, count in sorted(self.noted.items()) if count},
        }
        if self.labelled:
            counts["labels"] = dict(sorted(self.classes.items()))
        return counts

    def sample(self, period: int) -> "CleanRows":
        """Return the split's rows 1, 1 + period, 1 + 2 period, …, cleaned and selected in the same way."""
        return self if period == 1 else replace(self, rows=select_periodic(self.rows, period, [1]))

    def label_number(self, row: Row) -> int:
        return self._label_numbers[row.label]

    def fit(self, row: Row, tokens: Sequence[Sequence[int]]) -> Sequence[Sequence[int]] | None:
        """Count a tokenized row; return the tokens to store, or None if the row is dropped for its lengths.

        The ratio of the lengths includes the end of sentence, so that very short pairs pass: 1 and 2 tokens are 2 : 3.
        """
        lengths = [len(side) for side in tokens]
        longest, shortest = max(lengths), min(lengths)
        max_ratio = self.settings.max_ratio
        kept = True
        if longest > self.max_tokens:
            truncated = self.labelled and not self.train
            kept = self._count(TRUNCATED if truncated else OVER_LONG, keep=not self.train)
        elif self.train and max_ratio > 0 and longest + 1 > max_ratio * (shortest + 1):
            kept = self._count(LENGTH_RATIO, keep=False)
        if not kept:
            return None
        self.kept += 1
        if not self.labelled:
            return tokens
        self.classes[str(row.label)] += 1
        return [truncate(side, self.max_tokens, self.settings) for side in tokens]

    def _check_label(self, row: Row) -> None:
        if self.labels is None or row.label in self._label_numbers:
            return
        guess = nearest(str(row.label), self.labels)
        known = ", ".join(self.labels[:8])
        if len(self.labels) > 8:
            known += f", ... ({len(self.labels)} in all)"
        raise DataError(f"{row.location}: unknown label {row.label!r}{guess}; known: {known}")

    def _is_kept(self, row: Row) -> bool:
        if not self.labelled and row.texts[0] == row.texts[1] != "":
            self.noted[SAME_SIDES] += 1
        if not all(text.strip() for text in row.texts):
            return self._count(EMPTY_TEXT if self.labelled else EMPTY_SIDE, keep=not self.train)
        if self.held_out is None:
            return True
        row_known, *sides_known = self.held_out.find(row.texts)
        if row_known:
            return self._count(HELD_OUT, keep=self.settings.duplicates == "keep")
        self.noted.update(remark for remark, known in zip(SIDE_HELD_OUT, sides_known, strict=False) if known)
        return True

    def _count(self, reason: str, *, keep: bool) -> bool:
        """Count a row as kept with a remark or as dropped; return `keep`."""
        (self.noted if keep else self.dropped)[reason] += 1
        return keep
