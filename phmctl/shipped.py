"""Where the recipes and dataset cards lie: beside the package in a checkout, inside it in an installed wheel."""

import bz2
from itertools import islice
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = {"recipes": "recipes", "cards": "data/cards"}


def shipped(kind: str) -> Path:
    installed = _PACKAGE / "_shipped" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / _CHECKOUT[kind]


def shipped_names(kind: str) -> list[str]:
    """Return the sorted names (file stems) of the shipped ``recipes`` or ``cards``."""
    return sorted(path.stem for path in shipped(kind).glob("*.yaml"))


Pair = tuple[str, str]
MINIATURE = _PACKAGE / "miniature.tsv.bz2"
SIZES = {"train": 8000, "valid": 500, "test": 500}


def read_miniature() -> dict[str, list[Pair]]:
    text = bz2.decompress(MINIATURE.read_bytes()).decode()
    pairs = ((german, english) for german, _, english in (line.partition("\t") for line in text.splitlines()))
    return {split: list(islice(pairs, size)) for split, size in SIZES.items()}
