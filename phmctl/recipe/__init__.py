"""Recipes: the schema, and how files and options become one."""

from collections.abc import Iterator, Mapping
from typing import Any


def flatten(content: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the keys and values of nested mappings, with keys as ``--set`` takes them: ``training.steps``."""
    for key, value in content.items():
        if isinstance(value, Mapping):
            yield from flatten(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
