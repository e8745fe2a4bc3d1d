"""``train`` with several values: every cell of the grid once, what is finished left alone, what was stopped resumed."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from phmctl.devices import world
from phmctl.errors import RecipeError, RunError, UserError
from phmctl.options import TRAIN, command_line
from phmctl.recipe.loading import COMMON, common_overrides, differences, resolve
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.runs.find import check_tag, runs_root, versions_in
from phmctl.runs.summary import Summary, score, summarise
from phmctl.sweeps.cells import Cell, cells_of
from phmctl.sweeps.pool import Job


def cells(given: Mapping[str, Any]) -> list[Cell]:
    return cells_of(TRAIN, given)


def jobs_of(cells: Sequence[Cell]) -> list[Job]:
    """Return a job for each training; one that was stopped goes on. A job array has a sweep of one cell for each.

    Raises UserError, RunError.
    """
    jobs = []
    for cell, recipe in _trainings(cells):
        if recipe.training.initialise_from is not None:
            Run.open(recipe.training.initialise_from)
        about = recipe, cell.given["runs"] or runs_root()
        run = newest_of(*about)
        further = {} if run is None else {"tag": None, "resume": run.run.folder}  # a tag names new runs
        words, listed = (["train", *command_line(TRAIN, each)] for each in ({**cell.given, **further}, cell.given))
        jobs.append(Job(cell.label, words, [*listed, "--jobs", "1"], about))
        if run is not None and run.state in ("finished", "running"):
            jobs[-1].state = run.state
    return jobs


def _trainings(cells: Sequence[Cell]) -> list[tuple[Cell, Recipe]]:
    """Return the cells and their recipes, each training once: ``--n 1 --algebra real,phm`` says the same twice."""
    given = cells[0].given
    single = [name for name in ("resume", "checkpoint", "dry_run") if given[name] not in (None, False, "auto")]
    single += ["processes"] * (given["processes"] > 1 or world().size > 1)
    if single or given["recipe"] is None:
        what = f"--{single[0].replace('_', '-')} is for one training; leave it out" if single else "a RECIPE is wanted"
        raise UserError(f"{what}: a sweep goes on by itself with what was stopped; --list shows its cells")
    if given["tag"] is not None:
        check_tag(given["tag"])
    found: dict[str, tuple[Cell, Recipe]] = {}
    for cell in cells:
        common = common_overrides(**{name: cell.given[name] for name in COMMON})
        try:
            recipe = resolve(given["recipe"], common, cell.given["settings"] or ())
        except RecipeError as error:
            raise type(error)(f"{error}\n(in the cell {cell.label})") from error
        found.setdefault(recipe.model_dump_json(), (cell, recipe))
    return list(found.values())


def look(job: Job) -> None:
    """Find out what came of a training."""
    run = newest_of(*job.about)
    minutes = None if run is None else run.minutes
    job.figures = {
        "best": "–" if run is None else score(run),
        "min": "–" if minutes is None else f"{minutes:.1f}",
        "run": "–" if run is None else str(run.run.folder),
    }
    job.found = {"run": run and run.as_json()}


def newest_of(recipe: Recipe, root: Path) -> Summary | None:
    """Return the newest run of a recipe, its steps and its seed: what differs changes nothing that is trained."""
    for folder in reversed(versions_in(root / recipe.name / recipe.variant)):
        try:
            run = Run.open(folder)
        except RunError:  # `phmctl runs` says what is wrong with it
            continue
        if differences(run.recipe, recipe).keys() <= keys_changing(recipe, NOTHING):
            return summarise(run.folder)
    return None
