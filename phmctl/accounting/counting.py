"""``count-params``: a recipe's ledgers for several algebras and n, with the published figures beside them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl.accounting.ledger import Ledger, ledger_for_recipe
from phmctl.accounting.published import PublishedTable, published_tables, table_names
from phmctl.dimension import WITH_N
from phmctl.errors import RecipeError, UserError, nearest
from phmctl.recipe.loading import Override, common_overrides, resolve
from phmctl.shipped import shipped_names


@dataclass(frozen=True)
class ParameterCount:
    """What ``count-params`` found.

    Attributes:
        recipe: the recipe's name, or the table's.
        ledgers: one a variant, in the order asked for; none where a table alone was asked for.
        published: the published tables, where they were asked for.
    """

    recipe: str
    ledgers: tuple[Ledger, ...]
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
    try:
        variants = [resolve(recipe, [*choice, *overrides]) for choice in _choices(ns, algebras)]
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


def _choices(ns: Sequence[int], algebras: Sequence[str]) -> Iterator[list[Override]]:
    """Yield the overrides of each variant."""
    for algebra in algebras or (None,):
        several = ns if algebra is None or algebra in WITH_N else ()
        yield from (common_overrides(algebra=algebra, n=n) for n in several or (None,))
