"""The tables that the papers print: parameter figures and what they count, scores, and what is said of the setup.

All of it is data, in ``published.yaml``, which also says what each key means; the tests count real models against it.
"""

from functools import cache
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import yaml
from pydantic import BaseModel, BeforeValidator, ConfigDict

from phmctl.accounting.ledger import Ledger

_Words = Annotated[tuple[str, ...], BeforeValidator(str.split)]


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Count(NamedTuple):
    """What an arrangement of the model has; `figure` says of which figure it is, where a row prints several."""

    count: int  # type: ignore[assignment]  # a tuple has a method of this name
    arrangement: str
    figure: str | None = None


class Row(_Data):
    label: str
    figure: str
    variant: str
    options: _Words = ()
    size: str = ""
    counts: tuple[Count, ...]
    unit: int | None = None
    cut: bool = False

    def holds(self, count: Count) -> bool:
        """Whether a count, rounded as the figure is, is the figure."""
        return agrees(count.figure or self.figure, count.count, self.unit, cut=self.cut)

    def off(self, count: Count) -> float:
        """How much larger a count is, as a share of the figure."""
        return count.count / value_of(count.figure or self.figure) - 1

    def as_json(self) -> dict[str, Any]:
        candidates = [each._asdict() | {"holds": self.holds(each), "off": self.off(each)} for each in self.counts]
        held = any(each["holds"] for each in candidates)
        return {"label": self.label, "figure": self.figure, "candidates": candidates, "holds": held}


class Column(_Data):
    label: str
    recipe: str
    scores: _Words
    metric: str
    setup: dict[str, Any] = {}
    stand_ins: tuple[str, ...] = ()
    remark: str = ""


class Maps(_Data):
    """Which linear maps a table counts: those whose names begin with `below`, with or without biases."""

    below: str = ""
    biases: bool = False


class PublishedTable(_Data):
    """A published table; `key` is its name in JSON."""

    key: str
    names: tuple[str, ...]
    title: str
    rows: tuple[Row, ...]
    columns: tuple[Column, ...]
    unsaid: str
    score: str
    notes: tuple[str, ...]
    counted: str = "everything"
    maps: Maps | None = None

    def measure(self, ledger: Ledger) -> int:
        if self.maps is None:
            return ledger.totals.parameters
        maps = [row for row in ledger.rows if row.kind == "map" and row.component.startswith(self.maps.below)]
        return sum(row.components + row.rule + self.maps.biases * row.bias for row in maps)

    def as_json(self) -> dict[str, Any]:
        head = {"key": self.key, "title": self.title, "counted": self.counted}
        return {**head, "rows": [row.as_json() for row in self.rows], "notes": list(self.notes)}


def published_tables(name: str = "") -> list[PublishedTable]:
    """Return the tables of that name, or those that the recipe of that name reproduces; without a name all."""
    known = [each for each in table_names() if f"{name}-".startswith(f"{each}-")]
    return [table for table in _tables() if not name or (known and max(known, key=len) in table.names)]


def table_names() -> list[str]:
    return list(dict.fromkeys(name for table in _tables() for name in table.names))


@cache
def _tables() -> tuple[PublishedTable, ...]:
    content = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text(encoding="utf-8"))
    return tuple(PublishedTable(key=key, **table) for key, table in content["tables"].items())


def agrees(figure: str, count: int, unit: float | None = None, *, cut: bool = False) -> bool:
    """Say whether a count, rounded as the figure is (``5.5M``, ``721K``, ``29,421,568``), is the figure.

    `unit` is what the figure is rounded to, where that is more than its last digit: 10,000 for a ``400K``. With `cut`
    the digits that the figure does not print were cut off.
    """
    digits = figure.rstrip("KM").partition(".")[2]
    unit = unit or _scale(figure) / 10 ** len(digits)
    least = value_of(figure) - (0 if cut else unit / 2)
    return least <= count < least + unit


def value_of(figure: str) -> float:
    """Return the number that a figure prints: 5.5e6 for ``5.5M``."""
    return float(figure.rstrip("KM").replace(",", "")) * _scale(figure)


def _scale(figure: str) -> int:
    return {"K": 1_000, "M": 1_000_000}.get(figure[-1], 1)
