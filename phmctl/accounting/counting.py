"""``count-params``: a recipe's ledgers for several algebras and n, with the published figures beside them."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl.accounting.ledger import Ledger, Row, Totals, ledger_for_recipe
from phmctl.accounting.published import PublishedTable, published_tables, table_names
from phmctl.console import Table
from phmctl.dimension import WITH_N
from phmctl.errors import RecipeError, UserError, check_known
from phmctl.recipe.loading import Override, common_overrides, resolve
from phmctl.shipped import shipped_names


@dataclass(frozen=True)
class ParameterCount:
    recipe: str  # its name, or the table's
    ledgers: tuple[Ledger, ...]  # one a variant, in the order asked for; none where a table alone was asked for
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
        recipe: a path or a shipped name; with `paper` also one of :func:`~phmctl.accounting.published.table_names`,
            for that table alone, and None for all of them.
        ns: the values of n to compare; none: the recipe's own.
        algebras: the algebras to compare; none: what n implies. A fixed algebra has its own n: it is counted once.
        overrides: ``key.path=value`` settings, as for every command.
        paper: add the published figures that belong to the recipe.

    Raises:
        RecipeError: the recipe, an algebra or a setting is wrong.
        DimensionError: n does not divide a dimension; names the nearest that do.
    """
    tables, recipes = table_names(), shipped_names("recipes")
    if recipe is None and not paper:
        raise UserError("count-params needs a RECIPE, or --paper for the published tables")
    if recipe is None or (paper and recipe in tables and recipe not in recipes):
        if ns or algebras or overrides:
            raise UserError("--n, --algebra and --set have no part in a published table; name a recipe")
        return ParameterCount(recipe or "the papers", (), tuple(published_tables(recipe or "")))
    if paper and not Path(recipe).is_file():
        check_known("table or recipe", recipe, dict.fromkeys([*tables, *recipes]))
    choices: list[list[Override]] = []
    for algebra in algebras or (None,):
        several = ns if algebra is None or algebra in WITH_N else ()
        choices += (common_overrides(algebra=algebra, n=n) for n in several or (None,))
    try:
        variants = [resolve(recipe, [*choice, *overrides]) for choice in choices]
    except RecipeError:
        resolve(recipe)  # what is wrong with the recipe itself should not be blamed on a variant
        raise
    name, ledgers = variants[0].name, tuple(ledger_for_recipe(variant) for variant in variants)
    published = tuple(published_tables(name)) if paper else ()
    if paper and not published:
        raise UserError(f"no published table is of {name}; count-params --paper prints all tables")
    return ParameterCount(name, ledgers, published)


_COLUMNS = ("component", "×", "shape", "dense", "this model", "S", "rule", "bias", "norm", "embedding")
_NARROW = 5  # columns that a narrow terminal can show
_COMPARED = ("model", "parameters", "of dense", "without embeddings", "of dense", "rules A", "share of A")
_PUBLISHED = ("row", "published", "our count", "agrees", "what is counted")


def count_tables(count: ParameterCount) -> list[Table]:
    """Return one variant's ledger or several variants' comparison, then the published figures."""
    several = len(count.ledgers) > 1
    ours = [_comparison(count)] if several else [ledger_table(ledger) for ledger in count.ledgers]
    return [*ours, *(_published(table, count) for table in count.published)]


def ledger_table(ledger: Ledger) -> Table:
    """Return a ledger: a row a component, those of equal layers added up, then the totals.

    A terminal too narrow for all columns gets the first ones.
    """
    whole, inner = ledger.totals, ledger.without_embeddings
    rows = [_cells(row.component, row.copies, "×".join(map(str, row.shape)), row) for row in ledger.folded()]
    rows += [_cells("total", "", "", whole), _cells("without embeddings", "", "", inner)]
    width = sum(max(map(len, cells)) + 2 for cells in zip(_COLUMNS, *rows, strict=True))
    fits = not sys.stdout.isatty() or width <= shutil.get_terminal_size().columns
    shown = len(_COLUMNS) if fits else _NARROW
    saved = f"saved against the dense twin: {1 - whole.share:.1%}; without embeddings {1 - inner.share:.1%}"
    below = [saved, *ledger.notes]
    return Table(f"{ledger.name}: parameters", _COLUMNS[:shown], [row[:shown] for row in rows], below=below)


def _comparison(count: ParameterCount) -> Table:
    rows = []
    for ledger in count.ledgers:
        cells = [ledger.name.removeprefix(f"{count.recipe} ")]
        for each in (ledger.totals, ledger.without_embeddings):
            cells += [f"{each.parameters:,}", f"{each.share:.1%}"]
        rows.append([*cells, str(ledger.rules), f"{ledger.totals.rule / ledger.totals.parameters:.2%}"])
    notes = dict.fromkeys(text for ledger in count.ledgers for text in ledger.notes)
    return Table(f"{count.recipe}: parameters by variant", _COMPARED, rows, below=list(notes))


def _published(table: PublishedTable, count: ParameterCount) -> Table:
    """The arrangements that matter, their exact counts, and whether each is the figure."""
    rows = []
    for row in table.rows:
        for index, each in enumerate(row.counts):
            holds = "yes" if row.holds(each) else f"no, {row.off(each):+.1%}".replace("-", "−")
            figure = each.figure or ("" if index else row.figure)
            rows.append(("" if index else row.label, figure, f"{each.count:,}", holds, each.arrangement))
    ours = [f"{each.name.removeprefix(count.recipe)} {table.measure(each):,}" for each in count.ledgers if table.maps]
    itself = [f"{count.recipe} itself, counted so:{','.join(ours)}"] if ours else []
    return Table(table.title, _PUBLISHED, rows, text=(4,), below=[*table.notes, *itself])


def _cells(name: str, copies: int | str, shape: str, row: Row | Totals) -> list[str]:
    numbers = (row.dense, row.parameters, row.components, row.rule, row.bias, row.norm, row.embedding)
    return [name, str(copies), shape, *(f"{number:,}" for number in numbers)]
