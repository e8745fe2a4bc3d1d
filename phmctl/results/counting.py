"""Count a recipe's parameters for several algebras and n, next to published figures.

``published.yaml`` holds the published figures and explains each key.
"""

import shutil
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict

from phmctl.algebra.dimension import LEARNED
from phmctl.console import Table, is_terminal
from phmctl.errors import UserError, check_known
from phmctl.recipe.loading import common_overrides, resolve
from phmctl.results.ledger import Ledger, ModuleCounts, Totals, ledger_for_recipe
from phmctl.shipped import shipped_names

_COLUMNS = ("component", "×", "shape", "dense", "this model", "S", "rule", "bias", "norm", "embedding")
_NARROW = 5  # columns on a narrow terminal
_COMPARED = ("model", "parameters", "of dense", "without embeddings", "of dense", "rules A", "share of A")
_PUBLISHED = ("row", "published", "our count", "agrees", "counted parts")


class Arrangement(NamedTuple):
    """The parameters of a possible arrangement of a published model. `figure` selects one of several figures."""

    parameters: int
    description: str
    figure: str | None = None


class PublishedRow(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    label: str
    figure: str
    settings: str = ""
    counts: tuple[Arrangement, ...]
    unit: int | None = None
    cut: bool = False

    def holds(self, arrangement: Arrangement) -> bool:
        """Return whether the parameters round to the printed figure."""
        return agrees(arrangement.figure or self.figure, arrangement.parameters, self.unit, cut=self.cut)

    def off(self, arrangement: Arrangement) -> float:
        """Return the relative difference of the parameters from the printed figure."""
        return arrangement.parameters / value_of(arrangement.figure or self.figure) - 1

    def as_json(self) -> dict[str, object]:
        candidates = []
        for each in self.counts:
            counted = {"count": each.parameters, "arrangement": each.description, "figure": each.figure}
            candidates.append(counted | {"holds": self.holds(each), "off": self.off(each)})
        agreement = any(map(self.holds, self.counts))
        return {"label": self.label, "figure": self.figure, "candidates": candidates, "holds": agreement}


class PublishedTable(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    key: str
    names: tuple[str, ...]
    title: str
    rows: tuple[PublishedRow, ...]
    notes: tuple[str, ...]
    maps: str | None = None
    biases: bool = False

    def measure(self, ledger: Ledger) -> int:
        """Return a model's parameters as the table counts them."""
        if self.maps is None:
            return ledger.totals.parameters
        maps = [row for row in ledger.rows if row.kind == "map" and row.component.startswith(self.maps)]
        return sum(row.components + row.rule + self.biases * row.bias for row in maps)

    def table(self, recipe: str, ledgers: Sequence[Ledger]) -> Table:
        """Return the parameters of each row's arrangements, and whether they agree with the figure."""
        rows = []
        for row in self.rows:
            label, figure = row.label, row.figure
            for arrangement in row.counts:
                holds = "yes" if row.holds(arrangement) else f"no, {row.off(arrangement):+.1%}".replace("-", "−")
                printed, parameters = arrangement.figure or figure, f"{arrangement.parameters:,}"
                rows.append((label, printed, parameters, holds, arrangement.description))
                label = figure = ""
        below = list(self.notes)
        if self.maps is not None and ledgers:
            counts = [f"{ledger.name.removeprefix(recipe)} {self.measure(ledger):,}" for ledger in ledgers]
            below.append(f"{recipe} itself, counted so:{','.join(counts)}")
        return Table(self.title, _PUBLISHED, rows, text=(4,), below=below)


@cache
def _all_tables() -> tuple[PublishedTable, ...]:
    content = yaml.safe_load(Path(__file__).with_name("published.yaml").read_text(encoding="utf-8"))
    return tuple(PublishedTable(key=key, **table) for key, table in content["tables"].items())


def table_names() -> list[str]:
    return list(dict.fromkeys(name for table in _all_tables() for name in table.names))


def published_tables(name: str = "") -> list[PublishedTable]:
    """Return the tables of a name such as ``table1`` or of a recipe's name. Without a name, return all tables."""
    prefixes = [prefix for prefix in table_names() if f"{name}-".startswith(f"{prefix}-")]
    longest = max(prefixes, key=len, default=None)
    return [table for table in _all_tables() if not name or longest in table.names]


def agrees(figure: str, count: int, unit: float | None = None, *, cut: bool = False) -> bool:
    """Return whether a count rounds to a printed figure (``5.5M``, ``721K``). The data explain ``unit`` and ``cut``."""
    decimals = figure.rstrip("KM").partition(".")[2]
    unit = unit or _scale(figure) / 10 ** len(decimals)
    lowest = value_of(figure) - (0 if cut else unit / 2)
    return lowest <= count < lowest + unit


def value_of(figure: str) -> float:
    """Return the value of a printed figure: 5.5e6 for ``5.5M``."""
    return float(figure.rstrip("KM").replace(",", "")) * _scale(figure)


def _scale(figure: str) -> int:
    return {"K": 1_000, "M": 1_000_000}.get(figure[-1], 1)


@dataclass(frozen=True)
class ParameterCount:
    recipe: str  # name of the recipe or of the published table
    ledgers: tuple[Ledger, ...]  # one per variant, none for a published table without a recipe
    published: tuple[PublishedTable, ...] = ()

    def as_json(self) -> dict[str, object]:
        published = []
        for table in self.published:
            rows = [row.as_json() for row in table.rows]
            published.append({"key": table.key, "title": table.title, "rows": rows, "notes": list(table.notes)})
        variants = [ledger.as_json() for ledger in self.ledgers]
        return {"recipe": self.recipe, "variants": variants, "published": published}

    def tables(self) -> Iterator[Table]:
        """Yield the published tables, the ledger of a variant or the comparison of several, and the sizes."""
        for published in self.published:
            yield published.table(self.recipe, self.ledgers)
        if not self.ledgers:
            return
        if len(self.ledgers) == 1:
            yield ledger_table(self.ledgers[0])
        rows, sizes = [], []
        for ledger in self.ledgers:
            name, total, inner = ledger.name.removeprefix(f"{self.recipe} "), ledger.totals, ledger.without_embeddings
            counts = [f"{total.parameters:,}", f"{total.share:.1%}", f"{inner.parameters:,}", f"{inner.share:.1%}"]
            rows.append([name, *counts, str(ledger.rules), f"{total.rule / total.parameters:.2%}"])
            sizes.append([name, *(f"{size / 1e6:.2f}" for size in total.bytes.values())])
        if len(self.ledgers) > 1:
            notes = dict.fromkeys(note for ledger in self.ledgers for note in ledger.notes)
            yield Table(f"{self.recipe}: parameters by variant", _COMPARED, rows, below=list(notes))
        head = ("model", *self.ledgers[0].totals.bytes)
        yield Table(f"{self.recipe}: MB of the weights by the type of the stored matrices", head, sizes)


def count_parameters(
    recipe: str | None,
    *,
    ns: Sequence[int] = (),
    algebras: Sequence[str] = (),
    overrides: Sequence[str] = (),
    paper: bool = False,
) -> ParameterCount:
    """Count a recipe's parameters without allocating a weight.

    Args:
        recipe: a path or a shipped name. With `paper` also the name of a published table, or None for all tables.
        ns: the values of n to compare, by default the recipe's.
        algebras: the algebras to compare. By default n decides. An algebra with a fixed n is counted once.
        overrides: settings as ``key.path=value``.
        paper: add the published figures of the recipe.

    Raises RecipeError if the recipe, an algebra or a setting is invalid, DimensionError if n does not divide.
    """
    tables, recipes = table_names(), shipped_names("recipes")
    if recipe is None and not paper:
        raise UserError("no recipe is named; paper shows the published tables")
    if recipe is None or (paper and recipe in tables and recipe not in recipes):
        if ns or algebras or overrides:
            raise UserError("n, algebra and settings do not apply to a published table; name a recipe")
        return ParameterCount(recipe or "the papers", (), tuple(published_tables(recipe or "")))
    if paper and not Path(recipe).is_file():
        check_known("table or recipe", recipe, dict.fromkeys([*tables, *recipes]))
    choices = []
    for algebra in algebras or (None,):
        takes_n = algebra in (None, LEARNED)
        for n in ns if ns and takes_n else (None,):
            choices.append(common_overrides(algebra=algebra, n=n))
    variants = [resolve(recipe, [*choice, *overrides]) for choice in choices]
    name = variants[0].name
    published = tuple(published_tables(name)) if paper else ()
    if paper and not published:
        raise UserError(f"{name} reproduces no published table; count-params --paper prints all tables")
    return ParameterCount(name, tuple(map(ledger_for_recipe, variants)), published)


def ledger_table(ledger: Ledger) -> Table:
    """Return a table with a row per component, equal layers added up, and the totals.

    On a terminal that is too narrow the last columns are omitted.
    """
    total, inner = ledger.totals, ledger.without_embeddings
    rows = [_cells(row.component, str(row.copies), "×".join(map(str, row.shape)), row) for row in ledger.folded()]
    rows += [_cells("total", "", "", total), _cells("without embeddings", "", "", inner)]
    width = sum(max(map(len, cells)) + 2 for cells in zip(_COLUMNS, *rows, strict=True))
    fits = not is_terminal(sys.stdout) or width <= shutil.get_terminal_size().columns
    columns = len(_COLUMNS) if fits else _NARROW
    saved = f"saved against the dense twin: {1 - total.share:.1%}; without embeddings {1 - inner.share:.1%}"
    title = f"{ledger.name}: parameters"
    return Table(title, _COLUMNS[:columns], [row[:columns] for row in rows], below=[saved, *ledger.notes])


def _cells(name: str, copies: str, shape: str, counts: ModuleCounts | Totals) -> list[str]:
    numbers = (counts.dense, counts.parameters, counts.components, counts.rule, counts.bias, counts.norm)
    return [name, copies, shape, *(f"{number:,}" for number in (*numbers, counts.embedding))]
