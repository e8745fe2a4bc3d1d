"""``phmctl compare``: runs beside one another, and beside the published tables."""

from typing import Annotated

import typer

from phmctl.cli.options import Json, RunsRoot


def compare(
    runs: Annotated[
        list[str] | None, typer.Argument(metavar="[RUN]…", help="Runs, folders of runs, or tags.", show_default=False)
    ] = None,
    recipe: Annotated[str | None, typer.Option(metavar="NAME", help="All runs of a recipe.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="RUN|VARIANT", help="What the others are tested against (default: the dense model)."),
    ] = None,
    split: Annotated[str, typer.Option(help="test or valid.")] = "test",
    checkpoint: Annotated[
        str | None, typer.Option(help="Take results of this one only: best, last, average or step-N.")
    ] = None,
    score: Annotated[bool, typer.Option("--eval", help="Score the runs that have no result.")] = False,
    form: Annotated[str, typer.Option("--format", help="table, csv, latex or json.")] = "table",
    runs_root: RunsRoot = None,
    json: Json = False,
) -> None:
    """Compare trained models: means over seeds, tested differences, sizes, speeds, and what else differs."""
    from phmctl.comparison.compare import compare_runs, say_missing
    from phmctl.comparison.formats import comparison_csv, comparison_latex, comparison_tables, methods
    from phmctl.console import emit, emit_json, note
    from phmctl.errors import check_known

    check_known("format", form, ("table", "csv", "latex", "json"))
    found = compare_runs(
        runs or (),
        recipe=recipe,
        root=runs_root,
        split=split,
        checkpoint=checkpoint,
        baseline=baseline,
        score=score,
    )
    if json or form == "json":
        emit_json(found.as_json())
        return None
    if form != "table":
        emit(comparison_csv(found) if form == "csv" else comparison_latex(found))
        return say_missing(found)
    for table in comparison_tables(found):
        table.show()
    for method in methods(found):
        note(f"· tested by: {method}")
    for line in (*found.differences(), *found.notes()):
        note(f"· {line}")
    return say_missing(found)
