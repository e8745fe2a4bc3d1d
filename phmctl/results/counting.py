"""``count-params``: count a recipe's parameters for several algebras and n, next to published figures."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl.console import Table, is_terminal
from phmctl.dimension import WITH_N
from phmctl.errors import RecipeError, UserError, check_known
from phmctl.recipe.loading import common_overrides, resolve
from phmctl.results.ledger import Ledger, Row, Totals, ledger_for_recipe
from phmctl.results.published import PublishedTable, published_tables, table_names
from phmctl.shipped import shipped_names


@dataclass(frozen=True)
class ParameterCount:
    recipe: str  # name of the recipe or of the published table
    ledgers: tuple[Ledger, ...]  # one per variant; empty for a published table without a recipe
    published: tuple[PublishedTable, ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "variants": [ledger.as_json() for ledger in self.ledgers],
            "published": [table.as_json() for table in self.published],
        }


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
        recipe: a path or a shipped name; with `paper` also a name of :func:`~phmctl.results.published.table_names`
            for that table only, or None for all tables.
        ns: the values of n to compare; by default the recipe's.
        algebras: the algebras to compare; by default n decides. An algebra with a fixed n is counted once.
        overrides: settings as ``key.path=value``.
        paper: add the published figures of the recipe.

    Raises:
        RecipeError: the recipe, an algebra or a setting is invalid.
        DimensionError: n does not divide a dimension.
    """
    tables, recipes = table_names(), shipped_names("recipes")
    if recipe is None and not paper:
        raise UserError("count-params needs a RECIPE, or --paper for the published tables")
    if recipe is None or (paper and recipe in tables and recipe not in recipes):
        if ns or algebras or overrides:
            raise UserError("--n, --algebra and --set do not apply to a published table; name a recipe")
        return ParameterCount(recipe or "the papers", (), tuple(published_tables(recipe or "")))
    if paper and not Path(recipe).is_file():
        check_known("table or recipe", recipe, dict.fromkeys([*tables, *recipes]))
    choices = []
    for algebra in algebras or (None,):
        takes_n = algebra is None or algebra in WITH_N
        for n in ns if ns and takes_n else (None,):
            choices.append(common_overrides(algebra=algebra, n=n))
    try:
        variants = [resolve(recipe, [*choice, *overrides]) for choice in choices]
    except RecipeError:
        resolve(recipe)  # if the recipe itself is invalid, its error must not name a variant's option
        raise
    name = variants[0].name
    published = tuple(published_tables(name)) if paper else ()
    if paper and not published:
        raise UserError(f"{name} reproduces no published table; count-params --paper prints all tables")
    return ParameterCount(name, tuple(map(ledger_for_recipe, variants)), published)


_COLUMNS = ("component", "×", "shape", "dense", "this model", "S", "rule", "bias", "norm", "embedding")
_NARROW = 5  # columns on a narrow terminal
_COMPARED = ("model", "parameters", "of dense", "without embeddings", "of dense", "rules A", "share of A")
_PUBLISHED = ("row", "published", "our count", "agrees", "counted parts")


def count_tables(count: ParameterCount) -> list[Table]:
    """Return the ledger of a variant or the comparison of several, their sizes, and the published tables."""
    several = len(count.ledgers) > 1
    tables = [_comparison(count)] if several else [ledger_table(ledger) for ledger in count.ledgers]
    if count.ledgers:
        tables.append(_sizes(count))
    return tables + [_published(table, count) for table in count.published]


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


def _comparison(count: ParameterCount) -> Table:
    rows = []
    for ledger in count.ledgers:
        cells = [ledger.name.removeprefix(f"{count.recipe} ")]
        for totals in (ledger.totals, ledger.without_embeddings):
            cells += [f"{totals.parameters:,}", f"{totals.share:.1%}"]
        rows.append([*cells, str(ledger.rules), f"{ledger.totals.rule / ledger.totals.parameters:.2%}"])
    notes = dict.fromkeys(note for ledger in count.ledgers for note in ledger.notes)
    return Table(f"{count.recipe}: parameters by variant", _COMPARED, rows, below=list(notes))


def _sizes(count: ParameterCount) -> Table:
    """Return the megabytes of each variant's weights, by the type in which an export stores the matrices."""
    rows = []
    for ledger in count.ledgers:
        megabytes = [f"{size / 1e6:.2f}" for size in ledger.totals.bytes.values()]
        rows.append([ledger.name.removeprefix(f"{count.recipe} "), *megabytes])
    return Table(f"{count.recipe}: MB of the stored weights", ("model", *count.ledgers[0].totals.bytes), rows)


def _published(table: PublishedTable, count: ParameterCount) -> Table:
    """Return the exact counts of each row's candidate arrangements, and whether they agree with the figure."""
    rows = []
    for row in table.rows:
        label, figure = row.label, row.figure
        for candidate in row.counts:
            holds = "yes" if row.holds(candidate) else f"no, {row.off(candidate):+.1%}".replace("-", "−")
            rows.append((label, candidate.figure or figure, f"{candidate.count:,}", holds, candidate.arrangement))
            label = figure = ""
    below = list(table.notes)
    if table.maps and count.ledgers:
        variants = [(ledger.name.removeprefix(count.recipe), table.measure(ledger)) for ledger in count.ledgers]
        counts = ",".join(f"{variant} {parameters:,}" for variant, parameters in variants)
        below.append(f"{count.recipe} itself, counted so:{counts}")
    return Table(table.title, _PUBLISHED, rows, text=(4,), below=below)


def _cells(name: str, copies: str, shape: str, row: Row | Totals) -> list[str]:
    numbers = (row.dense, row.parameters, row.components, row.rule, row.bias, row.norm, row.embedding)
    return [name, copies, shape, *(f"{number:,}" for number in numbers)]
