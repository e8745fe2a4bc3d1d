"""``phmctl report``: one page about several runs."""

from pathlib import Path
from typing import Annotated

import typer

from phmctl.cli.compare import Baseline, EvalFirst, OfCheckpoint, OfRecipe, Runs, Split
from phmctl.cli.options import RunsRoot


def report(
    runs: Runs = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML file.")] = Path("report.html"),
    recipe: OfRecipe = None,
    baseline: Baseline = None,
    split: Split = "test",
    checkpoint: OfCheckpoint = None,
    score: EvalFirst = False,
    runs_root: RunsRoot = None,
) -> None:
    """Write a page about runs: scores, curves, parameters, samples, and the rules that were learned; one file.

    Its path is printed. It needs phmctl[report].
    """
    from phmctl.console import emit
    from phmctl.reports.report import write_report

    options = {"root": runs_root, "split": split, "checkpoint": checkpoint, "baseline": baseline, "score": score}
    write_report(runs or (), output, recipe=recipe, **options)
    emit(f"{output}\n")
