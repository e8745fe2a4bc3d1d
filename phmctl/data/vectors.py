"""Word vectors in GloVe's text format: a word and its numbers a line, plain or ``.gz``.

The 840B release has words with spaces in them, so the vector is the last numbers of a line and the word what stands in
front. A first line with two whole numbers (word2vec's count and width) is passed over.
"""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from phmctl.data.readers import read_lines
from phmctl.data.special import PAD, SPECIAL_TOKENS
from phmctl.errors import DataError

Floats = npt.NDArray[np.float32]
_REAL = re.compile(r"[-+]?(?:[0-9]*\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")


@dataclass(frozen=True)
class Vectors:
    table: Floats  # (V, d). PAD is zero; a token type that the file lacks has the mean of those that it has
    covered: npt.NDArray[np.bool_]  # (V,), whether the file has the token type


def read_vectors(path: Path, vocabulary: Sequence[str]) -> Vectors:
    """Read the vectors of a word tokenizer's vocabulary. Where a word is missing its lower-case form is taken."""
    exact: dict[str, list[int]] = defaultdict(list)
    lowered: dict[str, list[int]] = defaultdict(list)
    for index, token in enumerate(vocabulary[len(SPECIAL_TOKENS) :], start=len(SPECIAL_TOKENS)):
        exact[token.strip()].append(index)
        lowered[token.strip().lower()].append(index)
    found: dict[int, Floats] = {}
    second_best: dict[int, Floats] = {}
    for word, numbers in _wanted_rows(path, exact.keys() | lowered.keys()):
        for index in exact.get(word, ()):
            found.setdefault(index, numbers)
        for index in lowered.get(word, ()):
            second_best.setdefault(index, numbers)
    found = second_best | found
    if not found:
        raise DataError(
            f"{path} has none of the {len(vocabulary):,} words of the vocabulary; are they vectors of words?"
        )
    size = len(vocabulary)
    rows = np.fromiter(found, np.int64, len(found))
    vectors = np.stack([*found.values()])  # (covered, d)
    covered = np.zeros(size, np.bool_)
    covered[rows] = True
    table = np.tile(vectors.mean(axis=0, dtype=np.float64).astype(np.float32), (size, 1))  # (V, d)
    table[rows] = vectors
    table[PAD] = 0
    return Vectors(table, covered)


def _wanted_rows(path: Path, wanted: set[str]) -> Iterator[tuple[str, Floats]]:
    """Yield the rows of the words that are wanted, in the order of the file; the width of all rows is checked."""
    width = 0
    for number, line in enumerate(read_lines(path), start=1):
        text = line.rstrip(" ")
        if number == 1 and re.fullmatch(r"[0-9]+ [0-9]+", text):
            continue
        width = width or text.count(" ")
        word, numbers = _parts(path, number, text, width)
        if word not in wanted:
            continue
        try:
            with np.errstate(over="ignore"):
                values = np.array(numbers.split(" "), np.float32)
        except ValueError:
            values = np.full(1, np.nan, np.float32)
        if not np.isfinite(values).all():
            raise DataError(f"{path}, line {number}: not all fields behind the word are finite numbers")
        yield word, values


def _parts(path: Path, number: int, line: str, width: int) -> tuple[str, str]:
    if line.count(" ") == width:  # nearly all lines: no need to take the numbers apart
        word, _, numbers = line.partition(" ")
        return word, numbers
    parts = line.rsplit(" ", width)  # a word with spaces, and the numbers
    word = parts[0] if len(parts) > width else ""
    if not word or _REAL.fullmatch(word.rpartition(" ")[2]):  # a word may end in a whole number: "sept 11"
        raise DataError(
            f"{path}, line {number}: {line.count(' ')} numbers behind the word, but the first row has {width}; "
            "is the file whole, and of one width?"
        )
    return word, " ".join(parts[1:])
