"""``phmctl runs``: a table of trainings."""

from typing import Annotated

import typer

from phmctl.cli.options import Json, RunsRoot


def runs(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Recipes, variants, runs or tags (default: all runs)."),
    ] = None,
    root: RunsRoot = None,
    json: Json = False,
) -> None:
    """List runs: changed keys, seed, steps, state, best score, parameters, minutes."""
    from phmctl.console import emit_json, note
    from phmctl.runs.find import runs_root
    from phmctl.runs.show import remarks, run_tables
    from phmctl.runs.summary import list_runs

    found = list_runs(names or (), root)
    if json:
        emit_json([run.as_json() for run in found])
        return
    for table in run_tables(found):
        table.show()
    for remark in remarks(found):
        note(remark)
    if not found:
        note(f"no runs in {root or runs_root()}; train one with: phmctl train RECIPE")
