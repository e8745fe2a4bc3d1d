"""``phmctl compare``: runs beside one another, and beside the published tables."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from phmctl.cli.options import Json, RunsRoot

Runs = Annotated[
    list[str] | None, typer.Argument(metavar="RUN", help="Runs, folders of runs, or tags.", show_default=False)
]
OfRecipe = Annotated[str | None, typer.Option("--recipe", metavar="NAME", help="Compare all runs of this recipe.")]
Baseline = Annotated[
    str | None,
    typer.Option(metavar="RUN|VARIANT", help="Run or variant to compare the others with (default: the dense model)."),
]
Split = Annotated[str, typer.Option(help="test, valid, test_NAME (a named test set) or all (test sets).")]
OfCheckpoint = Annotated[
    str | None, typer.Option("--checkpoint", help="Use only results of this checkpoint: best, last, average or step-N.")
]
BestOf = Annotated[
    str | None,
    typer.Option(
        "--best-of",
        metavar="KEY",
        help="Compare each model at the value of this recipe key that is best on valid; print the trials.",
        show_default=False,
    ),
]
Budget = Annotated[
    str | None,
    typer.Option(
        help="parameters (without embeddings) or minutes: compare only models that use as much as the baseline.",
        show_default=False,
    ),
]
EvalFirst = Annotated[bool, typer.Option("--eval", help="Score the runs that have no result.")]


def compare(
    runs: Runs = None,
    recipe: OfRecipe = None,
    baseline: Baseline = None,
    split: Split = "test",
    checkpoint: OfCheckpoint = None,
    score: EvalFirst = False,
    best: BestOf = None,
    budget: Budget = None,
    form: Annotated[
        str | None, typer.Option("--format", help="table (default), csv, latex or json.", show_default=False)
    ] = None,
    paper: Annotated[
        str | None,
        typer.Option(
            metavar="TABLE",
            help="Print a published table beside our runs: table1 to table5 (or 1 to 5), ceng501, ni.",
            show_default=False,
        ),
    ] = None,
    runs_root: RunsRoot = None,
    json: Json = False,
) -> None:
    """Compare runs over seeds, or with a published table.

    Prints means, tested differences, sizes, speeds and other differences between the runs.
    """
    from phmctl.errors import UserError, check_known

    if json and form not in (None, "json"):
        raise UserError(f"--json and --format {form} are two forms: leave one out")
    form = "json" if json else form or "table"
    check_known("format", form, ("table", "csv", "latex", "json"))
    if paper is None:
        asked = {"split": split, "checkpoint": checkpoint, "baseline": baseline, "score": score}
        asked |= {"best": best, "budget": budget}
        return _compare(runs or (), recipe, runs_root, form, asked)
    if any((baseline, best, budget, score)) or split != "test":
        raise UserError("--baseline, --best-of, --budget, --eval and --split have no part in --paper: leave them out")
    return _compare_papers(paper, runs or (), form, recipe=recipe, root=runs_root, checkpoint=checkpoint)


def _compare(runs: Sequence[str], recipe: str | None, root: Path | None, form: str, asked: dict[str, Any]) -> None:
    from phmctl.comparison.compare import compare_splits
    from phmctl.comparison.formats import comparison_csv, comparison_latex, comparison_tables, methods
    from phmctl.console import emit, emit_json

    several = compare_splits(runs, recipe=recipe, root=root, **asked)
    if form == "json":
        told = [found.as_json() for found in several]
        return emit_json(told[0] if len(told) == 1 else {"comparisons": told})
    for found in several:
        if form == "table":
            for table in comparison_tables(found):
                table.show()
            _say([*(f"tested by: {method}" for method in methods(found)), *found.differences(), *found.notes()])
        else:
            emit(comparison_csv(found) if form == "csv" else comparison_latex(found))
    return _say_missing(
        "without a result yet (or add --eval):", [line for found in several for line in found.missing()]
    )


def _compare_papers(name: str, runs: Sequence[str], form: str, **asked: Any) -> None:
    from phmctl.comparison.papers import compare_papers
    from phmctl.console import emit, emit_json

    tables = compare_papers(name, runs, **asked)
    if form == "json":
        return emit_json({"tables": [table.as_json() for table in tables]})
    for found in tables:
        if form == "table":
            for table in found.tables():
                table.show()
            _say(found.notes())
        else:
            emit(found.as_csv() if form == "csv" else found.as_latex())
        _say_missing("commands that fill empty cells (then score each run by phmctl eval):", found.missing())
    return None


def _say(lines: Sequence[str]) -> None:
    from phmctl.console import note

    for line in lines:
        note(f"· {line}")


def _say_missing(words: str, commands: Sequence[str]) -> None:
    """Print commands, each on a line of its own, to be copied."""
    from phmctl.console import note

    for line in (words, *commands) if commands else ():
        note(line)
