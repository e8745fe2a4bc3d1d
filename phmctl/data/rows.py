"""Hold out, change, clean, select and count rows.

Valid and test keep every row, so that N lines of input have N lines of output. Only malformed and unlabelled examples,
which cannot be scored, are dropped. Train loses rows with an empty text, rows whose text is in valid or test, whatever
their label, and after tokenization rows that are too long or whose texts differ too much in length.
"""

import hashlib
import html
import random
import re
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import Any

from phmctl.data import UNKNOWN, Row, RowSource, Splits, repeatable
from phmctl.data.card import Cleaning
from phmctl.data.readers import BLANKS
from phmctl.errors import DataError, nearest

Division = tuple[Splits, dict[str, str]]  # splits, and for each split made from train a description of its rows

# Reasons for dropping a row: keys of the manifest's counts.
MALFORMED, HELD_OUT, OVER_LONG, LENGTH_RATIO = "odd_row", "in_valid_or_test", "over_long", "length_ratio"
EMPTY_SIDE = "empty_side"  # in parallel text
UNLABELLED, EMPTY_TEXT = "no_label", "empty_text"  # in labelled text
REASONS = (MALFORMED, UNLABELLED, EMPTY_TEXT, EMPTY_SIDE, HELD_OUT, OVER_LONG, LENGTH_RATIO)  # order of the counts
# Remarks on rows that are kept.
TRUNCATED = "cut"
SAME_SIDES = "same_sides"
SIDE_HELD_OUT = ("source_in_valid_or_test", "target_in_valid_or_test")

# The entities that Moses' escape-special-chars.perl writes. Others, such as "&copy", are ordinary text.
_ENTITY = re.compile("&(?:amp|lt|gt|apos|quot|#124|#91|#93);")


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
    """Yield rows p, p + period, p + 2 period, … for each p in `numbers`, counted from 1, or all other rows."""
    remainders = {number % period for number in numbers}
    for number, row in enumerate(rows, start=1):
        if (number % period in remainders) != complement:
            yield row


def divide_train(splits: Mapping[str, RowSource], first_rows: Mapping[str, int], period: int) -> Division:
    """Take splits from train: from a first row on, one row in each period."""
    train = splits["train"]
    divided = {"train": select_periodic(train, period, first_rows.values(), complement=True)}
    divided |= {split: select_periodic(train, period, [row]) for split, row in first_rows.items()}
    held_out = {
        split: f"rows {row:,}, {row + period:,}, {row + 2 * period:,}, ..." for split, row in first_rows.items()
    }
    return {**splits, **divided}, held_out


def hold_out(splits: Mapping[str, RowSource], text: str) -> Division:
    """Take valid and, with two sizes, test from train. `text` is ``1000,1000`` rows or ``5%,5%`` of them.

    The rows are chosen by a digest of their first text, so that the same corpus is always divided in the same way. Rows
    with equal sources stay in one split, as do two sources that the rows pair in both orders, and the last source of a
    label stays in train. A share can exceed its size by the last source's further rows. Raises DataError.
    """
    match = re.fullmatch(r"(\d+)(?:,(\d+))?|(\d+(?:\.\d+)?)%(?:,(\d+(?:\.\d+)?)%)?", text.replace(" ", ""))
    numbers = [] if match is None else [float(number) for number in match.groups() if number is not None]
    percent = "%" in text
    if not numbers or min(numbers) <= 0 or (percent and sum(numbers) >= 100):
        raise DataError(f"split={text}: expected rows of valid and test, 1000,1000, or shares of train, 5%,5%")
    names = ("valid", "test")[: len(numbers)]
    for name in names:
        if name in splits:
            raise DataError(f"split={text} takes {name} from train. Leave split or the {name} files out")
    rows = splits.get("train", ())

    @cache  # counting the sources takes passes over the files
    def split_of() -> dict[bytes, str]:
        """Return the split of each source that leaves train."""
        groups = _sources_paired_in_both_orders(rows)
        members: dict[bytes, set[bytes]] = defaultdict(set)
        counts: Counter[bytes] = Counter()
        labels: dict[bytes, set[str]] = defaultdict(set)
        for row in rows:
            if row.readable:
                source = _digest(row.texts[0])
                group = groups.get(source, source)
                members[group].add(source)
                counts[group] += 1
                labels[group] |= {row.label} if row.label is not None else set()
        remaining = Counter(label for found in labels.values() for label in found)
        total = counts.total()
        order = sorted(counts, reverse=True)
        chosen: dict[bytes, str] = {}
        left = len(counts)
        for name, number in zip(names, numbers, strict=True):
            wanted = number / 100 * total if percent else number
            while wanted > 0 and order:
                group = order.pop()
                if any(remaining[label] == 1 for label in labels[group]):
                    continue
                remaining.subtract(labels[group])
                chosen |= dict.fromkeys(members[group], name)
                wanted -= counts[group]
                left -= 1
            if not left or (wanted > 0 and not percent):
                raise DataError(f"split={text} leaves none of the {total:,} rows for train. Take fewer")
        return chosen

    @repeatable
    def rows_of(split: str) -> Iterator[Row]:
        for row in rows:
            if split_of().get(_digest(row.texts[0]), "train") == split:
                yield row

    held_out = dict.fromkeys(names, f"{text} of train, by the SHA-256 of the first text")
    return {**splits, **{name: rows_of(name) for name in ("train", *names)}}, held_out


def _sources_paired_in_both_orders(rows: RowSource) -> dict[bytes, bytes]:
    """Return the smallest member of its group for each first text that some row pairs in the opposite order, too."""
    firsts = {_digest(row.texts[0]) for row in rows if row.readable}
    pairs = set()
    for row in rows:
        if len(row.texts) == 2 and (second := _digest(row.texts[1])) in firsts:
            pairs.add((_digest(row.texts[0]), second))
    groups: dict[bytes, list[bytes]] = {}
    for first, second in sorted(pairs):
        if first < second and (second, first) in pairs:
            merged = sorted({*groups.get(first, [first]), *groups.get(second, [second])})
            groups |= dict.fromkeys(merged, merged)
    return {source: members[0] for source, members in groups.items()}


def _digest(text: str) -> bytes:
    return hashlib.sha256(normalised_text(text).encode("utf-8")).digest()[:8]


# ------------------------------------------------------------------------------------------- subject-verb agreement


def agreement(splits: Mapping[str, RowSource]) -> Division:
    """Add the number of attractors to Linzen's simplified files, or divide the original table."""
    if "valid" in splits:
        return {name: _add_attractors(rows) for name, rows in splits.items()}, {}
    return _agreement_table(splits)


@repeatable
def _add_attractors(rows: RowSource) -> Iterator[Row]:
    """Take the number of attractors from the name of a test file."""
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
            if int.from_bytes(_digest(row.texts[0]), "big") % 10 in digits:
                yield row

    descriptions = dict.fromkeys(("valid", "test"), "1 of 10 shares of the texts, by their SHA-256")
    return {"train": with_digits(*range(8)), "valid": with_digits(8), "test": with_digits(9)}, descriptions


def _agreement_table(splits: Mapping[str, RowSource]) -> Division:
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


# By card: what is done with the splits of its files.
SPECIAL_CARDS = {"agreement": agreement, "agreement-resplit": agreement_resplit}


# ---------------------------------------------------------------------------------------------------------- cleaning


def describe_counts(dropped: Mapping[str, int]) -> str:
    """Return the counts of rows in words: "3 empty side, 1 over long"."""
    return ", ".join(f"{count:,} {reason.replace('_', ' ')}" for reason, count in dropped.items())


def clean_line(line: str, settings: Cleaning) -> str:
    """Return a line as it is tokenized and, in valid and test, stored.

    Surrounding blanks are removed. Entities and Unicode are changed as the settings say. Lower-casing is left to the
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


def row_digests(texts: Sequence[str], *, symmetric: bool, sides: bool) -> list[bytes]:
    """Return digests that find a row's texts in another split: of the row and, with `sides`, of each text by itself.

    Texts that differ only in case, Unicode form or white space are equal, so that tokenised text matches raw text. If
    the rows are `symmetric`, a row with swapped texts is equal, too.
    """
    normalised = [normalised_text(text) for text in texts]
    keys = [["row", *(sorted(normalised) if symmetric else normalised)]]
    if sides:
        keys += [[str(side), text] for side, text in enumerate(normalised)]
    return [blake2b("\n".join(key).encode("utf-8"), digest_size=12).digest() for key in keys]


@dataclass
class CleanRows:
    """The cleaned and selected rows of a split. Each iteration starts the counts again.

    `max_tokens` excludes the end of sentence. An over-long labelled text of valid or test is truncated. An over-long
    sentence is kept as it is.
    """

    rows: RowSource
    settings: Cleaning
    max_tokens: int
    labels: Sequence[str] | None = None  # None for parallel text
    held_out: Collection[bytes] | None = None  # digests of the rows of valid and test, or None for these splits
    symmetric: bool = False  # a row with swapped texts is the same row

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
        """Yield the cleaned rows. :meth:`fit` checks their lengths. Raises DataError for an unknown label."""
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
        """Count a tokenized row. Return the tokens to store, or None if the row is dropped for its lengths.

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
        raise DataError(f"{row.location}: unknown label {row.label!r}{guess}. Known: {known}")

    def _is_kept(self, row: Row) -> bool:
        if not self.labelled and row.texts[0] == row.texts[1] != "":
            self.noted[SAME_SIDES] += 1
        if not all(text.strip() for text in row.texts):
            return self._count(EMPTY_TEXT if self.labelled else EMPTY_SIDE, keep=not self.train)
        if self.held_out is None:
            return True
        digests = row_digests(row.texts, symmetric=self.symmetric, sides=not self.labelled)
        row_known, *sides_known = (digest in self.held_out for digest in digests)
        if row_known:
            return self._count(HELD_OUT, keep=self.settings.duplicates == "keep")
        self.noted.update(remark for remark, known in zip(SIDE_HELD_OUT, sides_known, strict=False) if known)
        return True

    def _count(self, reason: str, *, keep: bool) -> bool:
        """Count a row as kept with a remark or as dropped. Return `keep`."""
        (self.noted if keep else self.dropped)[reason] += 1
        return keep


def clean_splits(
    splits: Mapping[str, RowSource],
    cleaning: Cleaning,
    max_tokens: int,
    labels: Sequence[str] | None,
    *,
    symmetric: bool,
    corpus: str,
) -> dict[str, CleanRows]:
    """Return the splits as cleaned rows, train without the texts of the others. Raises DataError for an empty split."""
    held_out: set[bytes] = set()
    for name, rows in splits.items():
        empty = True
        for row in rows:
            labelled = row.label is not None
            empty = empty and not (labelled or (labels is None and all(map(str.strip, row.texts))))
            if name != "train" and (labelled or labels is None):
                texts = [clean_line(text, cleaning) for text in row.texts]
                held_out |= {*row_digests(texts, symmetric=symmetric, sides=labels is None)}
            elif not empty:
                break
        if empty:
            lacks = "pair with text on both sides" if labels is None else "example with a label"
            advice = "" if name in ("train", "valid") else ", or leave a test set out"
            raise DataError(f"{name} of {corpus!r} has no {lacks}. Check the files{advice}")
    return {
        name: CleanRows(rows, cleaning, max_tokens, labels, held_out if name == "train" else None, symmetric)
        for name, rows in splits.items()
    }
