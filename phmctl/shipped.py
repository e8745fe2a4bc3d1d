"""The recipes and dataset cards that are part of phmctl: next to the package in a checkout, inside it in a wheel."""

import bz2
from itertools import islice
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = {"recipes": "recipes", "cards": "data/cards"}


def shipped(category: str) -> Path:
    """Return the folder of the shipped ``recipes`` or ``cards``."""
    installed = _PACKAGE / "_shipped" / category
    return installed if installed.is_dir() else _PACKAGE.parent / _CHECKOUT[category]


def shipped_names(category: str) -> list[str]:
    """Return the sorted names (file stems) of the shipped ``recipes`` or ``cards``."""
    return sorted(path.stem for path in shipped(category).glob("*.yaml"))


Pair = tuple[str, str]
MINIATURE = _PACKAGE / "miniature.tsv.bz2"
SIZES = {"train": 8000, "valid": 500, "test": 500}


def read_miniature() -> dict[str, list[Pair]]:
    """Return the German and English sentences of the built-in corpus, by split."""
    lines = bz2.decompress(MINIATURE.read_bytes()).decode().splitlines()
    columns = (line.partition("\t") for line in lines)
    pairs = ((german, english) for german, _, english in columns)
    return {split: list(islice(pairs, size)) for split, size in SIZES.items()}
