"""The miniature: a German–English corpus of 9,000 pairs that comes with the package.

It is not translation data from the wild. A grammar wrote it: small, correct and rich enough in agreement, word order
and subordinate clauses that a model must learn grammar to translate it. No German sentence occurs twice, and every
lemma of valid and test occurs in train. ``miniature.tsv.bz2`` holds a pair a line: train, then valid, then test.
"""

import bz2
from itertools import islice
from pathlib import Path

Pair = tuple[str, str]
SIZES = {"train": 8000, "valid": 500, "test": 500}


def read_miniature() -> dict[str, list[Pair]]:
    """Return the pairs (German, English) of each split."""
    text = bz2.decompress(Path(__file__).with_suffix(".tsv.bz2").read_bytes()).decode()
    pairs = ((german, english) for german, _, english in (line.partition("\t") for line in text.splitlines()))
    return {split: list(islice(pairs, size)) for split, size in SIZES.items()}
