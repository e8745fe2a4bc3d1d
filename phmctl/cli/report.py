"""``phmctl report``: one page about several runs."""

from pathlib import Path
from typing import Annotated

import typer

from phmctl.cli.compare import Baseline, EvalFirst, OfCheckpoint, OfRecipe, Runs, Split
from phmctl.cli.options import Json, RunsRoot


def report(
    runs: Runs = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="HTML file to write.")] = Path("report.html"),
    recipe: OfRecipe = None,
    baseline: Baseline = None,
    split: Split = "test",
    checkpoint: OfCheckpoint = None,
    score: EvalFirst = False,
    runs_root: RunsRoot = None,
    json: Json = False,
) -> None:
    """Write one HTML page about runs and the rules they learned.

    The page has scores, curves, parameters, samples, rules and differences; its path is printed. Needs phmctl[report].
    """
    from phmctl.console import emit, emit_json
    from phmctl.reports.report import write_report

    options = {"root": runs_root, "split": split, "checkpoint": checkpoint, "baseline": baseline, "score": score}
    found = write_report(runs or (), output, recipe=recipe, **options)
    if json:
        return emit_json({"report": str(output), **found.as_json()})
    return emit(f"{output}\n")
