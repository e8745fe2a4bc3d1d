"""Where the recipes and dataset cards lie: beside the package in a checkout, inside it in an installed wheel."""

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_CHECKOUT = {"recipes": "recipes", "cards": "data/cards"}


def shipped(kind: str) -> Path:
    """Return the folder of the shipped ``recipes`` or ``cards``."""
    installed = _PACKAGE / "_shipped" / kind
    return installed if installed.is_dir() else _PACKAGE.parent / _CHECKOUT[kind]


def shipped_names(kind: str) -> list[str]:
    """Return the sorted names (file stems) of the shipped ``recipes`` or ``cards``."""
    return sorted(path.stem for path in shipped(kind).glob("*.yaml"))
