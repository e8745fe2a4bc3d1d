"""Cleaning: what a line looks like before it is tokenized, and which train pairs are left out, with counts.

Valid and test keep every line, whatever it is: N lines in, N lines out. Train loses pairs with an empty side and pairs
that stand in valid or test, and, once tokenized, pairs that are too long or too unequal.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from phmctl.data.card import Cleaning, TextCleaning
from phmctl.data.readers import BLANKS, HoldOut, Pair, PairSource

# Why a train pair is dropped: the keys of the manifest's counts.
EMPTY, HELD_OUT, OVER_LONG, LOPSIDED = "empty_side", "in_valid_or_test", "over_long", "length_ratio"
ODD_ROW, UNLABELLED, EMPTY_TEXT = "odd_row", "no_label", "empty_text"  # of labelled text
REASONS = (ODD_ROW, UNLABELLED, EMPTY_TEXT, EMPTY, HELD_OUT, OVER_LONG, LOPSIDED)
_IN_WORDS = {
    ODD_ROW: "of another number of columns than the header's",
    UNLABELLED: "without a label",
    EMPTY_TEXT: "with an empty text",
    EMPTY: "with an empty side",
    HELD_OUT: "that are in valid or test too",
    OVER_LONG: "that are too long",
    LOPSIDED: "with sides of too unequal lengths",
}
CUT = "cut"  # a text of valid or test that is kept in part
# What is counted but kept: a train pair of which one side alone stands in valid or test.
SAME_SIDES = "same_sides"  # and a pair of the same text twice
SOURCE_HELD_OUT, TARGET_HELD_OUT = "source_in_valid_or_test", "target_in_valid_or_test"

# What Moses' escape-special-chars.perl writes, and nothing else: "&copy" in a text is meant.
_MOSES = {
    "&amp;": "&",
    "&#124;": "|",
    "&lt;": "<",
    "&gt;": ">",
    "&apos;": "'",
    "&quot;": '"',
    "&#91;": "[",
    "&#93;": "]",
}
_ENTITY = re.compile("|".join(map(re.escape, _MOSES)))


@dataclass
class Tally:
    """Counts of one split.

    Attributes:
        read: pairs in the files.
        kept: pairs that are stored.
        dropped: pairs left out, by reason.
        noted: pairs that are kept although something is unusual about them, by what it is.
    """

    read: int = 0
    kept: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    noted: Counter[str] = field(default_factory=Counter)

    def objection(self, reason: str, *, keep: bool) -> bool:
        """Count an objection to a row, and return whether it stays all the same."""
        (self.noted if keep else self.dropped)[reason] += 1
        return keep

    def as_dict(self) -> dict[str, Any]:
        """Return the counts for the manifest."""
        return {
            "read": self.read,
            "kept": self.kept,
            "dropped": {reason: self.dropped[reason] for reason in REASONS if self.dropped[reason]},
            "noted": {what: self.noted[what] for what in sorted(self.noted) if self.noted[what]},
        }


def in_words(dropped: Mapping[str, int]) -> str:
    """Return in words how many rows were dropped, and why."""
    return ", ".join(f"{number:,} {_IN_WORDS[reason]}" for reason, number in dropped.items()) or "nothing dropped"


def clean_line(line: str, settings: TextCleaning) -> str:
    """Return a line as it is tokenized and, of valid and test, stored: no blanks around it, and as the card says.

    Entities are Moses' eight; normalisation is Unicode NFC with every run of white space made one space. Lower-casing
    is the tokenizer's, so that references keep their case.
    """
    if settings.entities == "decode" and "&" in line:
        line = _ENTITY.sub(lambda match: _MOSES[match[0]], line)
    if settings.normalise:
        return " ".join(unicodedata.normalize("NFC", line).split())
    return line.strip(BLANKS)


def clean_pairs(pairs: Iterable[Pair], settings: Cleaning) -> Iterator[Pair]:
    """Yield cleaned pairs; none is left out."""
    for source, target in pairs:
        yield clean_line(source, settings), clean_line(target, settings)


class HeldOut:
    """The pairs of valid and test, to find them again in train.

    Two lines are the same if they differ only in case, in Unicode form, or in white space: tokenised text matches raw.

    Args:
        pairs: the cleaned pairs of valid and test.
    """

    def __init__(self, pairs: Iterable[Pair]) -> None:
        self._pairs = {(same_text(source), same_text(target)) for source, target in pairs}
        self._sources = {source for source, _ in self._pairs}
        self._targets = {target for _, target in self._pairs}

    def sides(self, pair: Pair) -> tuple[bool, bool, bool]:
        """Return whether the source, the target, and both as one pair stand in valid or test."""
        keys = same_text(pair[0]), same_text(pair[1])
        return keys[0] in self._sources, keys[1] in self._targets, keys in self._pairs


class CleanPairs:
    """A split, cleaned and judged. Can be iterated again; :attr:`tally` is of the last time.

    Args:
        pairs: the split as it is read.
        settings: the card's.
        max_tokens: longest side, in tokens with the end of sentence.
        held_out: the pairs of valid and test, where the split is train; None for valid and test, which lose nothing.
    """

    def __init__(self, pairs: PairSource, settings: Cleaning, max_tokens: int, held_out: HeldOut | None = None) -> None:
        self._pairs = pairs
        self._settings = settings
        self._max_tokens = max_tokens
        self._held_out = held_out
        self.tally = Tally()

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs that stay, their lengths not yet judged."""
        self.tally = Tally()
        for pair in clean_pairs(self._pairs, self._settings):
            self.tally.read += 1
            self.tally.noted[SAME_SIDES] += pair[0] == pair[1] != ""
            if self._stays(pair):
                yield pair

    def sample(self, period: int) -> "CleanPairs":
        """Return the first of every `period` pairs of the files, cleaned and judged alike."""
        pairs = self._pairs if period == 1 else HoldOut(self._pairs, period, held=True, places=(1,))
        return CleanPairs(pairs, self._settings, self._max_tokens, self._held_out)

    def fits(self, source: int, target: int) -> bool:
        """Judge a pair by its sides' numbers of tokens (without the end of sentence), and count the verdict.

        The end of sentence counts in the ratio, which spares very short pairs: one token against two is 2 : 3.
        """
        longer, shorter = max(source, target) + 1, min(source, target) + 1
        ratio = self._settings.max_ratio
        if longer > self._max_tokens:
            stays = self._object(OVER_LONG)
        elif self._held_out is not None and ratio > 0 and longer > ratio * shorter:
            stays = self._object(LOPSIDED)
        else:
            stays = True
        self.tally.kept += stays
        return stays

    def _stays(self, pair: Pair) -> bool:
        if not (pair[0].strip() and pair[1].strip()):
            return self._object(EMPTY)
        if self._held_out is None:
            return True
        in_source, in_target, in_pairs = self._held_out.sides(pair)
        if in_pairs:
            return self._object(HELD_OUT)
        self.tally.noted[SOURCE_HELD_OUT] += in_source
        self.tally.noted[TARGET_HELD_OUT] += in_target
        return True

    def _object(self, reason: str) -> bool:
        """Count an objection to a pair, and return whether it stays all the same."""
        return self.tally.objection(reason, keep=self._held_out is None)


def same_text(line: str) -> str:
    """Return what two lines have in common that differ only in case, in Unicode form, or in white space."""
    return "".join(unicodedata.normalize("NFC", line).casefold().split())


def same_texts(texts: Sequence[str]) -> bytes:
    """Return what examples have in common whose texts are the same in the sense of :func:`same_text`, to digest it."""
    return "\n".join(map(same_text, texts)).encode("utf-8")
