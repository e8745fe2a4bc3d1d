"""Published figures of parameters. ``published.yaml`` holds the data and explains each key."""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict

from phmctl.results.ledger import Ledger

_Words = Annotated[tuple[str, ...], BeforeValidator(str.split)]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Count(NamedTuple):
    """The parameters of an arrangement of the model; `figure` selects one of several printed figures."""

    count: int  # type: ignore[assignment]  # hides tuple.count
    arrangement: str
    figure: str | None = None


class Row(_Data):
    label: str
    figure: str
    settings: _Words = ()
    counts: tuple[Count, ...]
    unit: int | None = None
    cut: bool = False

    def holds(self, count: Count) -> bool:
        """Return whether a count rounds to the printed figure."""
        return agrees(count.figure or self.figure, count.count, self.unit, cut=self.cut)

    def off(self, count: Count) -> float:
        """Return the relative difference of a count from the printed figure."""
        return count.count / value_of(count.figure or self.figure) - 1

    def as_json(self) -> dict[str, Any]:
        candidates = [{**count._asdict(), "holds": self.holds(count), "off": self.off(count)} for count in self.counts]
        agreement = any(map(self.holds, self.counts))
        return {"label": self.label, "figure": self.figure, "candidates": candidates, "holds": agreement}


class Maps(_Data):
    """The linear maps that a table counts: names that start with `below`, with or without biases."""

    below: str = ""
    biases: bool = False


class PublishedTable(_Data):
    key: str
    names: tuple[str, ...]
    title: str
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    maps: Maps | None = None

    def measure(self, ledger: Ledger) -> int:
        """Return a model's parameters as the table counts them."""
        if self.maps is None:
            return ledger.totals.parameters
        maps = [row for row in ledger.rows if row.kind == "map" and row.component.startswith(self.maps.below)]
        return sum(row.components + row.rule + self.maps.biases * row.bias for row in maps)

    def as_json(self) -> dict[str, Any]:
        rows = [row.as_json() for row in self.rows]
        return {"key": self.key, "title": self.title, "rows": rows, "notes": list(self.notes)}


def published_tables(name: str = "") -> list[PublishedTable]:
    """Return the tables of a name such as ``table1`` or of a recipe's name; without a name, all tables."""
    prefixes = [prefix for prefix in table_names() if f"{name}-".startswith(f"{prefix}-")]
    longest = max(prefixes, key=len, default=None)
    return [table for table in _tables() if not name or longest in table.names]


def table_names() -> list[str]:
    return list(dict.fromkeys(name for table in _tables() for name in table.names))


@cache
def _tables() -> tuple[PublishedTable, ...]:
    content = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return tuple(PublishedTable(key=key, **table) for key, table in content["tables"].items())


def agrees(figure: str, count: int, unit: float | None = None, *, cut: bool = False) -> bool:
    """Return whether a count rounds to a printed figure (``5.5M``, ``721K``); see ``unit`` and ``cut`` in the data."""
    decimals = figure.rstrip("KM").partition(".")[2]
    unit = unit or _scale(figure) / 10 ** len(decimals)
    lowest = value_of(figure) - (0 if cut else unit / 2)
    return lowest <= count < lowest + unit


def value_of(figure: str) -> float:
    """Return the value of a printed figure: 5.5e6 for ``5.5M``."""
    return float(figure.rstrip("KM").replace(",", "")) * _scale(figure)


def _scale(figure: str) -> int:
    return {"K": 1_000, "M": 1_000_000}.get(figure[-1], 1)
