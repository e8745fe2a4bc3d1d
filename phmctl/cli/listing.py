"""The commands ``recipes``, ``runs`` and ``count-params``."""

from typing import Annotated

import typer

from phmctl.cli.bench import integers, names
from phmctl.cli.build import app, command
from phmctl.console import Shown, Table
from phmctl.options import Runs, Settings
from phmctl.shipped import shipped_names


@command(app, "recipes")
def recipes(name: Annotated[str | None, typer.Argument(metavar="RECIPE")] = None) -> Shown:
    """List the shipped recipes, or print one with its comments.

    Args:
        name: Recipe to print, with its comments.
    """
    from phmctl.recipe.loading import find_recipe, load_recipe

    if name is not None:
        path, recipe = find_recipe(name), load_recipe(name)
        text = path.read_text(encoding="utf-8")
        document = {"name": recipe.name, "path": str(path), "text": text, "recipe": recipe.model_dump()}
        return Shown(document, text=text)
    loaded = [load_recipe(shipped) for shipped in shipped_names("recipes")]
    documents = [recipe.model_dump(include={"name", "task", "description"}) for recipe in loaded]
    rows = [(recipe.name, recipe.task, recipe.description) for recipe in loaded]
    return Shown(documents, [Table("recipes", ("name", "task", "description"), rows, text=(1, 2))])


@command(app, "runs")
def show_runs(names: Annotated[list[str] | None, typer.Argument(metavar="NAME")] = None, runs: Runs = None) -> Shown:
    """List runs: changed keys, seed, steps, state, best score, parameters, minutes.

    Args:
        names: Recipes, variants, runs or tags (default: all runs).
    """
    from phmctl.runs.find import runs_root
    from phmctl.runs.summary import list_runs, run_tables

    root = runs_root(runs)
    summaries = list_runs(names or (), root)
    notes = [f"{run.run.name} failed: {run.reason}" for run in summaries if run.reason is not None]
    if not summaries:
        notes = [f"no runs in {root}; train a model with: phmctl train RECIPE"]
    return Shown([run.as_json() for run in summaries], run_tables(summaries), notes=notes)


@command(app, "count-params")
def count_params(
    recipe: Annotated[str | None, typer.Argument(metavar="RECIPE")] = None,
    n: str | None = None,
    algebra: str | None = None,
    paper: bool = False,
    settings: Settings = (),
) -> Shown:
    """Count the parameters of a recipe and of its dense twin by component, without allocating them.

    Args:
        recipe: Recipe: a path or a shipped name; with --paper also table1, table2, table4, table5 or ni.
        n: A value of n, or several to compare: 1,2,4,8,16.
        algebra: An algebra, or several to compare: phm,quaternion.
        paper: Print the published figures and ours.
    """
    from phmctl.results.counting import count_parameters, count_tables

    ns, algebras = integers("n", n), names("algebra", algebra)
    count = count_parameters(recipe, ns=ns, algebras=algebras, overrides=list(settings or ()), paper=paper)
    return Shown(count.as_json(), count_tables(count))
