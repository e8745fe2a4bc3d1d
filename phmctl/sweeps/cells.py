"""The grid: options with several values, and the cells that they span.

Commas part values: ``--n 1,2,4``, ``--set model.dropout=0.1,0.3``. Within quotes and brackets, as YAML reads them, they
do not: ``--set 'description="one, two"'`` is one value.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from phmctl.errors import RecipeError, UserError

_CLOSING = {"[": "]", "{": "}"}
_QUOTED = re.compile(r"""'(?:[^']|'')*'|"(?:[^"\\]|\\.)*\"""", re.DOTALL)


@dataclass(frozen=True)
class Axis:
    """An option and its values."""

    name: str  # what the axis is called in tables: ``n``, ``seed``, ``model.dropout``
    values: tuple[str, ...]  # as the user wrote them
    option: str  # ``--n``; ``--set`` for a recipe's key

    def arguments(self, value: str) -> tuple[str, str]:
        """Return the option with one value, as a command line has it."""
        return self.option, f"{self.name}={value}" if self.option == "--set" else value


@dataclass(frozen=True)
class Cell:
    """One place of the grid: a value of each axis, by option and by name; `label` has those that differ."""

    arguments: tuple[str, ...]
    values: Mapping[str, str]
    label: str


def split_values(text: str) -> list[str]:
    """Return the values in a text, parted by commas that stand in no quotes and no brackets.

    What is never closed is one value: the reader of YAML says what is wrong with it.
    """
    values, closing, place = [""], list[str](), 0
    while place < len(text):
        part = text[place]
        if part in "\"'" and (closing or not values[-1].strip()):  # a quote within a word is none
            quoted = _QUOTED.match(text, place)
            if quoted is None:
                return [text]
            part = quoted[0]
        elif part in _CLOSING:
            closing.append(_CLOSING[part])
        elif closing and part == closing[-1]:
            closing.pop()
        place += len(part)
        if part == "," and not closing:
            values.append("")
        else:
            values[-1] += part
    return [text] if closing else [value.strip() for value in values]


def axis(name: str, text: str | None, option: str | None = None) -> list[Axis]:
    """Return the axis of an option, if it was given."""
    if text is None:
        return []
    values = split_values(text)
    if len(values) > 1 and "" in values:
        raise UserError(f"{option or '--' + name} {text}: a value between two commas is empty")
    return [Axis(name, tuple(dict.fromkeys(values)), option or f"--{name}")]


def setting_axes(settings: Sequence[str]) -> list[Axis]:
    """Return an axis for each ``--set KEY=VALUE``."""
    found: list[Axis] = []
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key.strip():
            raise RecipeError(f"--set {setting}: expected key.path=value, for example --set training.steps=200")
        found += axis(key.strip(), value, "--set")
    return found


def cells_of(axes: Sequence[Axis]) -> list[Cell]:
    """Return the cells of a grid; the last axis changes fastest."""
    cells = []
    for values in product(*(each.values for each in axes)):
        arguments, labels = list[str](), list[str]()
        for each, value in zip(axes, values, strict=True):
            arguments += each.arguments(value)
            if len(each.values) > 1:
                labels.append(f"{each.name.rpartition('.')[2] if each.option == '--set' else each.name}={value}")
        named = {each.name: value for each, value in zip(axes, values, strict=True)}
        cells.append(Cell(tuple(arguments), named, " ".join(labels) or "the only cell"))
    return cells
