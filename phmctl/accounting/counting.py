"""``count-params``: a recipe's ledgers for several algebras and n, with the published figures beside them."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl.accounting.ledger import Ledger, Row, Totals, ledger_for_recipe
from phmctl.accounting.published import PublishedTable, published_tables, table_names
from phmctl.console import Table, note
from phmctl.dimension import WITH_N
from phmctl.errors import RecipeError, UserError, nearest
from phmctl.recipe.loading import Override, common_overrides, resolve
from phmctl.shipped import shipped_names


@dataclass(frozen=True)
class ParameterCount:
    """What ``count-params`` found."""

    recipe: str  # its name, or the table's
    ledgers: tuple[Ledger, ...]  # one a variant, in the order asked for; none where a table alone was asked for
    published: tuple[PublishedTable, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
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
            what = f"{recipe} is a published table" if recipe else "these are published tables"
            raise UserError(f"{what}, not a recipe: --n, --algebra and --set have no part in it")
        return ParameterCount(recipe or "the papers", (), tuple(published_tables(recipe or "")))
    if paper and recipe not in recipes and not Path(recipe).is_file():
        raise UserError(
            f"no table or recipe {recipe!r}{nearest(recipe, [*tables, *recipes])}\n"
            f"tables: {', '.join(tables)}; recipes: phmctl recipes"
        )
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
    return ParameterCount(name, ledgers, tuple(published_tables(name)) if paper else ())


def parse_ns(text: str | None) -> list[int]:
    """Read ``1,2,4``.

    Raises:
        UserError: a part is not a positive whole number.
    """
    parts = split_list(text)
    wrong = [part for part in parts if not part.isdecimal() or int(part) < 1]
    if wrong:
        raise UserError(f"--n {text}: {wrong[0]!r} is not a positive whole number; write for example --n 1,2,4,8,16")
    return [int(part) for part in parts]


def split_list(text: str | None) -> list[str]:
    """Split a comma-separated option, dropping empty parts and repetitions."""
    parts = [part.strip() for part in (text or "").split(",")]
    return list(dict.fromkeys(part for part in parts if part))


_COLUMNS = ("component", "×", "shape", "dense", "this model", "S", "rule", "bias", "norm", "embedding")
_NARROW = 5  # columns that a narrow terminal can show
_COMPARED = ("model", "parameters", "of dense", "without embeddings", "of dense", "rules A", "share of A")
_PUBLISHED = ("row", "published", "our count", "agrees", "what is counted")


def print_count(count: ParameterCount) -> None:
    """Print one variant's ledger or several variants' comparison, then the published figures."""
    if len(count.ledgers) == 1:
        print_ledger(count.ledgers[0])
    elif count.ledgers:
        print_comparison(count.recipe, count.ledgers)
    for table in count.published:
        print_published(table)
        if table.maps is not None and count.ledgers:
            names = (ledger.name.removeprefix(f"{count.recipe} ") for ledger in count.ledgers)
            counted = (f"{name} {table.measure(each):,}" for name, each in zip(names, count.ledgers, strict=True))
            _print_notes([f"{count.recipe} itself, counted so: {', '.join(counted)}"])


def print_ledger(ledger: Ledger) -> None:
    """Print a ledger: a row a component, those of equal layers added up, then the totals.

    A terminal too narrow for all columns gets the first ones, whole, and is told of the others.
    """
    rows = [_cells(row.component, row.copies, "×".join(map(str, row.shape)), row) for row in ledger.folded()]
    rows.append(_cells("total", "", "", ledger.totals))
    rows.append(_cells("without embeddings", "", "", ledger.without_embeddings))
    width = sum(max(map(len, cells)) + 3 for cells in zip(_COLUMNS, *rows, strict=True)) + 1
    fits = not sys.stdout.isatty() or width <= shutil.get_terminal_size().columns
    shown = len(_COLUMNS) if fits else _NARROW
    Table(f"{ledger.name}: parameters", _COLUMNS[:shown], [row[:shown] for row in rows]).show()
    if not fits:
        _print_notes([f"{', '.join(_COLUMNS[shown:])}: on a terminal of {width} columns, into a pipe, or with --json"])
    whole, inner = ledger.totals, ledger.without_embeddings
    note(f"saved against the dense twin: {1 - whole.share:.1%}; without embeddings {1 - inner.share:.1%}")
    _print_notes(ledger.notes)


def print_comparison(recipe: str, ledgers: Sequence[Ledger]) -> None:
    """Print a row a variant: totals, and their share of the dense twin's."""
    rows = []
    for ledger in ledgers:
        cells = [ledger.name.removeprefix(f"{recipe} ")]
        for each in (ledger.totals, ledger.without_embeddings):
            cells += [f"{each.parameters:,}", f"{each.share:.1%}"]
        rows.append([*cells, str(ledger.rules), f"{ledger.totals.rule / ledger.totals.parameters:.2%}"])
    Table(f"{recipe}: parameters by variant", _COMPARED, rows).show()
    _print_notes(dict.fromkeys(text for ledger in ledgers for text in ledger.notes))


def print_published(table: PublishedTable) -> None:
    """Print a published table: the arrangements that matter, their exact counts, and whether each is the figure."""
    rows = []
    for row in table.rows:
        for index, count in enumerate(row.counts):
            holds = "yes" if row.holds(count) else f"no, {row.off(count):+.1%}".replace("-", "−")
            figure = count.figure or ("" if index else row.figure)
            rows.append(("" if index else row.label, figure, f"{count.count:,}", holds, count.arrangement))
    Table(table.title, _PUBLISHED, rows, text=(4,)).show()
    _print_notes(table.notes)


def _cells(name: str, copies: int | str, shape: str, row: Row | Totals) -> list[str]:
    numbers = (row.dense, row.parameters, row.components, row.rule, row.bias, row.norm, row.embedding)
    return [name, str(copies), shape, *(f"{number:,}" for number in numbers)]


def _print_notes(notes: Iterable[str]) -> None:
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
    for text in notes:
        note(textwrap.fill(text, width, initial_indent="· ", subsequent_indent="  "))
