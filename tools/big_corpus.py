#!/usr/bin/env python3
"""Measure what preparing a large corpus takes: generated pairs on disk, then peak memory and minutes.

    python tools/big_corpus.py --pairs 4500000 --workers 2 --folder /somewhere/large

The text is made up, and the same for everyone: words of syllables, drawn from a Zipf-Mandelbrot law with an open
vocabulary, so that new words keep coming as they do in real text (about 1.2 million distinct ones a side in 4.5 million
pairs). The target side has the source's words in another spelling, some of them in another order.
"""

import argparse
import json
import resource
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from phmctl.console import emit, note
from phmctl.data.corpus import own_corpus
from phmctl.data.prepared.prepare import prepare_named
from phmctl.recipe.schema import ParallelSection

BLOCK = 10_000  # pairs that are drawn at a time
HELD = 2_000  # pairs of valid, and of test
FLAT = 20.0  # how many of the most frequent words are about equally frequent
LONGEST = 90  # words a sentence
SPELLED = 1 << 17  # words that are spelled once and kept
GIB = 1 << 20  # ru_maxrss counts KiB

CONSONANTS = {"xx": "ptkbdgmnlrsvfhjz", "yy": ["sch", "tr", "pl", *"gkbdmnlrswfhz"]}
VOWELS = {"xx": "aeiou", "yy": ["a", "e", "i", "o", "u", "ö", "ü", "ei", "au"]}


class Speller:
    """Spells the words of one side; a word is its rank, and the more frequent it is, the shorter."""

    def __init__(self, side: str) -> None:
        self._syllables = [one + other for one in CONSONANTS[side] for other in VOWELS[side]]
        self._known = [self._spell(rank) for rank in range(SPELLED)]

    def __call__(self, rank: int) -> str:
        return self._known[rank] if rank < SPELLED else self._spell(rank)

    def _spell(self, rank: int) -> str:
        parts = []
        while rank >= 0:
            rank, part = divmod(rank, len(self._syllables))
            parts.append(self._syllables[part])
            rank -= 1
        return "".join(parts)


def draw(block: int) -> Iterator[list[int]]:
    """Yield the ranks of the words of a block's sentences; the same block is always the same."""
    random = np.random.default_rng([20260101, block])
    lengths = np.clip(random.lognormal(3.05, 0.55, BLOCK), 1, LONGEST).astype(int)
    # P(rank > r) = (1 + r / FLAT) ** -0.5: the density falls as r ** -1.5, distinct words grow as words ** 0.67.
    ranks = np.minimum(FLAT * (random.random(lengths.sum()) ** -2.0 - 1.0), 2.0**40).astype(np.int64)
    for sentence in np.split(ranks, np.cumsum(lengths)[:-1]):
        yield sentence.tolist()


def write(folder: Path, name: str, blocks: range, count: int) -> tuple[Path, Path]:
    """Write a split's two files."""
    folder.mkdir(parents=True, exist_ok=True)
    sides = {side: Speller(side) for side in CONSONANTS}
    paths = folder / f"{name}.xx", folder / f"{name}.yy"
    left = count
    with paths[0].open("w", encoding="utf-8") as source, paths[1].open("w", encoding="utf-8") as target:
        for block in blocks:
            for ranks in draw(block):
                if not left:
                    break
                left -= 1
                source.write(" ".join(map(sides["xx"], ranks)) + " .\n")
                target.write(" ".join(map(sides["yy"], ranks[::2] + ranks[1::2])) + " .\n")
    return paths


def generate(folder: Path, pairs: int) -> dict[str, tuple[Path, Path]]:
    """Write train, valid and test, each from blocks of its own."""
    blocks = -(-pairs // BLOCK)
    return {
        "train": write(folder, "train", range(blocks), pairs),
        "valid": write(folder, "valid", range(1 << 20, (1 << 20) + 1), HELD),
        "test": write(folder, "test", range(1 << 21, (1 << 21) + 1), HELD),
    }


def peak() -> tuple[float, float]:
    """Return the largest resident size so far, in GiB: of this process, and of the largest of its children."""
    who = resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN
    own, children = (resource.getrusage(each).ru_maxrss / GIB for each in who)
    return own, children


def main() -> None:
    """Generate, prepare, and print what it took as JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pairs", type=int, default=300_000)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--folder", type=Path, required=True)
    given = parser.parse_args()
    begun = time.monotonic()
    files = generate(given.folder / f"text-{given.pairs}", given.pairs)
    made, before = time.monotonic(), peak()
    note(f"generated {given.pairs:,} pairs in {(made - begun) / 60:.1f} minutes")
    section = ParallelSection(card=f"big-{given.pairs}", vocabulary=given.vocabulary)
    own = own_corpus(section.card, {split: [pair] for split, pair in files.items()})
    prepared = prepare_named(section, root=given.folder, own=own, workers=given.workers, force=True)
    own, children = peak()
    result = {
        "pairs": given.pairs,
        "workers": given.workers,
        "text_gib": round(sum(path.stat().st_size for pair in files.values() for path in pair) / (1 << 30), 3),
        "kept": prepared.manifest["splits"]["train"]["kept"],
        "minutes": round((time.monotonic() - made) / 60, 2),
        "peak_gib": round(own, 3),
        "peak_of_a_child_gib": round(children, 3),
        "peak_before_gib": round(before[0], 3),
    }
    emit(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
