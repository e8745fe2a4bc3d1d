"""``phmctl distil``."""

from typing import Annotated

import typer

from phmctl.cli import options
from phmctl.console import emit, emit_json


def distil(
    teacher: Annotated[str, typer.Argument(metavar="TEACHER_RUN", help="A trained translator or classifier.")],
    recipe: Annotated[str | None, typer.Option(help="The student's recipe (default: the teacher's).")] = None,
    n: options.N = None,
    algebra: options.Algebra = None,
    seed: Annotated[int | None, typer.Option(help="Seed of the student.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Number of optimiser steps of the student.")] = None,
    settings: options.Settings = None,
    start: Annotated[
        str, typer.Option(help="nearest: begin with the Kronecker sums nearest to the teacher's weights; or random.")
    ] = "nearest",
    beam: Annotated[int | None, typer.Option(min=1, help="Beam size of the teacher (default: its recipe's).")] = None,
    references: Annotated[
        bool, typer.Option("--references/--no-references", help="Train on the references too.")
    ] = True,
    data: options.DataRoot = None,
    runs: options.RunsRoot = None,
    tag: Annotated[str | None, typer.Option(help="Name of the student's run.")] = None,
    json: options.Json = False,
) -> None:
    """Train a small model on a trained model's answers; print the student's run directory at the end.

    A translator translates its training text by beam search, once for all its students; a classifier's probabilities
    are learned beside the labels.
    """
    from phmctl.distillation import distil as run_distil

    result = run_distil(
        teacher, recipe, n=n, algebra=algebra, seed=seed, steps=steps, settings=settings or (), start=start, beam=beam,
        references=references, data=data, runs=runs, tag=tag, quiet=False,
    )  # fmt: skip
    if json:
        emit_json({"run": str(result.run.folder), "steps": result.steps, "best_score": result.best_score})
    else:
        emit(str(result.run.folder))
    if result.exit_code:
        raise typer.Exit(result.exit_code)
