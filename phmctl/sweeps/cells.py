"""The grid: options with several values, and the cells that they span.

Commas part values: ``--n 1,2,4``, ``--set model.dropout=0.1,0.3``. Within quotes and brackets, as YAML reads them, they
do not: ``--set 'description="one, two"'`` is one value.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import yaml

from phmctl.options import Option


@dataclass(frozen=True)
class Cell:
    """One place of the grid."""

    label: str  # the values of it that differ from cell to cell
    given: dict[str, Any]  # the command's options, each with its value


def split_values(text: str) -> list[str]:
    """Return the values in a text, as they stand in a YAML list. What is no such list is one value."""
    try:
        listed = yaml.compose(f"[{text}]")
    except yaml.YAMLError:
        return [text]
    if not isinstance(listed, yaml.SequenceNode) or listed.end_mark.index != len(text) + 2:
        return [text]
    return [text[each.start_mark.index - 1 : each.end_mark.index - 1] for each in listed.value] or [text]


def cells_of(options: Sequence[Option], given: Mapping[str, Any]) -> list[Cell]:
    """Return a cell for each combination of values; those of the last option change fastest. Raises RecipeError."""
    axes: list[dict[str, tuple[Option, Any]]] = []  # by label
    for option in options:
        value = given.get(option.name)
        if not option.axis or value in (None, []):
            continue
        if option.argument:
            axes.append({str(each): (option, each) for each in value})
        elif option.many:
            for key, equals, text in (setting.partition("=") for setting in value):
                name = key.strip().rpartition(".")[2]
                axes.append({f"{name}={each}": (option, f"{key}{equals}{each}") for each in split_values(text)})
        else:
            axes.append({f"{option.name}={each}": (option, option.read(each)) for each in split_values(value)})
    cells = []
    for place in product(*(axis.items() for axis in axes)):
        own = {**given, **{option.name: [] for _, (option, _) in place if option.many}}
        for _, (option, value) in place:
            own[option.name] = [*own[option.name], value] if option.many else value
        labels = [label for axis, (label, _) in zip(axes, place, strict=True) if len(axis) > 1]
        cells.append(Cell(" ".join(labels) or "the only cell", own))
    return cells
