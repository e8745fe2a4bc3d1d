"""Commands that list and compare: ``recipes``, ``runs``, ``count-params``, ``compare`` and ``report``."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

import phmctl
from phmctl.cli.options import Json, Runs, Settings, Split, integers, names
from phmctl.console import Shown, Table
from phmctl.errors import require
from phmctl.shipped import shipped_names
from phmctl.storage import write_atomic

if TYPE_CHECKING:
    from phmctl.results.compare import Comparison

_NAMES = "Recipes, variants, runs or tags, which phmctl runs lists."
Names = Annotated[list[str], Argument(metavar="NAME", help=_NAMES)]
ResultsOf = Annotated[str | None, Option(help="Use only results of this checkpoint: best, last, average or step-N.")]
Baseline = Annotated[
    str | None,
    Option(metavar="RUN|VARIANT", help="Baseline: a run or a variant (default: the dense variant, else the first)."),
]
ScoreFirst = Annotated[
    bool, Option("--eval", help="First score the runs that have the text and the checkpoint but no result.")
]


_RECIPES = {  # title of a table -> beginnings of the names of the recipes in it
    "for your own text (name=…, data.card=…)": ("multi30k-de-en", "sentence-pairs", "text-classification"),
    "small enough for two cores": ("miniature", "shakespeare", "snli-counterfactual", "agreement-resplit"),
    "Zhang et al. 2021": ("table", "hamilton", "rotation-3d", "octonion"),
    "CENG501, which reproduced them": ("ceng501",),
    "Li et al. 2020": ("ni-", "probe"),
}


def recipes(
    name: Annotated[str | None, Argument(metavar="RECIPE", help="Recipe to print, with its comments.")] = None,
    json: Json = False,
) -> Shown:
    """List the shipped recipes, or print one with comments."""
    from phmctl.recipe.loading import find_recipe, load_recipe

    if name is not None:
        path, recipe = find_recipe(name), load_recipe(name)
        text = path.read_text(encoding="utf-8")
        document = {"name": recipe.name, "path": str(path), "text": text, "recipe": recipe.model_dump()}
        return Shown(document, text=text)
    loaded = [load_recipe(shipped) for shipped in shipped_names("recipes")]
    documents = [recipe.model_dump(include={"name", "task", "description"}) for recipe in loaded]
    groups: dict[str, list[Sequence[str]]] = {title: [] for title in _RECIPES}
    for recipe in loaded:
        title = next(title for title, names in _RECIPES.items() if recipe.name.startswith(names))
        groups[title].append((recipe.name, recipe.task, recipe.description))
    tables = [Table(title, ("name", "task", "description"), rows, text=(1, 2)) for title, rows in groups.items()]
    return Shown(documents, tables)


def show_runs(
    names: Annotated[list[str] | None, Argument(metavar="NAME", help=_NAMES)] = None,
    runs: Runs = None,
    json: Json = False,
) -> Shown:
    """List runs: changed keys, seed, steps, state, best score, parameters, minutes."""
    from phmctl.runs.run import runs_root
    from phmctl.runs.summary import list_runs, run_tables

    root = runs_root(runs)
    summaries = list_runs(names or (), root)
    notes = [f"{run.run.name} failed: {run.reason}" for run in summaries if run.reason is not None]
    if not summaries:
        notes = [f"no runs in {root}; train a model with: phmctl train RECIPE"]
    return Shown([run.as_json() for run in summaries], run_tables(summaries), notes=notes)


def count_params(
    recipe: Annotated[
        str | None,
        Argument(
            metavar="RECIPE",
            help="Recipe: a path or a shipped name; with --paper also table1, table2, table4, table5 or ni.",
        ),
    ] = None,
    n: Annotated[str | None, Option(help="A value of n, or several to compare: 1,2,4,8,16.")] = None,
    algebra: Annotated[str | None, Option(help="An algebra, or several to compare: phm,quaternion.")] = None,
    paper: Annotated[bool, Option("--paper", help="Print the published figures and ours.")] = False,
    settings: Settings = None,
    json: Json = False,
) -> Shown:
    """Count the parameters of a recipe and of the dense twin by component, without allocating them."""
    ns, algebras = integers("n", n), names("algebra", algebra)
    count = phmctl.count_parameters(recipe, ns=ns, algebras=algebras, overrides=settings or (), paper=paper)
    return Shown(count.as_json(), count.tables())


def compare(
    names: Names,
    runs: Runs = None,
    split: Split = "test",
    checkpoint: ResultsOf = None,
    baseline: Baseline = None,
    score: ScoreFirst = False,
    json: Json = False,
) -> Shown:
    """Compare runs over seeds.

    Prints means, tested differences, sizes, speeds and other differences between the runs. Ends with exit code 1 if
    --eval could not score a run.
    """
    comparisons = phmctl.compare(names, runs=runs, split=split, checkpoint=checkpoint, baseline=baseline, score=score)
    tables: list[Table] = []
    notes: list[str] = []
    commands: list[str] = []
    for comparison in comparisons:
        tables += comparison.tables()
        notes += [f"· {line}" for line in (*comparison.differences(), *comparison.notes())]
        commands += comparison.missing()
    if commands:
        notes += ["without a result yet (or add --eval):", *commands]
    return Shown(_document(comparisons), tables, notes=notes, code=int(score and bool(commands)))


def report(
    names: Names,
    runs: Runs = None,
    split: Split = "test",
    checkpoint: ResultsOf = None,
    baseline: Baseline = None,
    score: ScoreFirst = False,
    output: Annotated[Path, Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    json: Json = False,
) -> Shown:
    """Write one HTML page about runs and print the path. Needs phmctl[report].

    The page has scores, curves, samples and differences.
    """
    from phmctl.results.report import render

    for module in ("matplotlib", "jinja2"):  # before the comparison, which may take long
        require(module, "report")
    comparisons = phmctl.compare(names, runs=runs, split=split, checkpoint=checkpoint, baseline=baseline, score=score)
    write_atomic(output, render(*comparisons))
    return Shown({"report": str(output), **_document(comparisons)}, text=f"{output}\n")


def _document(comparisons: Sequence["Comparison"]) -> dict[str, object]:
    documents = [comparison.as_json() for comparison in comparisons]
    return documents[0] if len(documents) == 1 else {"comparisons": documents}
