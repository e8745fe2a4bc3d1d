"""``train`` with several values: every cell of the grid once, what is finished left alone, what was stopped resumed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any

from phmctl.console import Shown, Table
from phmctl.errors import RecipeError, RunError, UserError
from phmctl.options import TRAIN, TRAIN_AXES
from phmctl.recipe.loading import differences, load_recipe, override
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.runs.find import check_tag, runs_root, versions_in
from phmctl.runs.summary import Summary, score, summarise
from phmctl.sweeps.cells import Axis, Cell, axis, cells_of, setting_axes
from phmctl.sweeps.pool import Job, carry_out, listed, what_is_left

_COMMON = ("device", "data", "runs", "tag")  # options of each cell's command


@dataclass(frozen=True)
class Sweep:
    """What was asked for: a recipe, options with their values, further ones of each command, the folder of runs."""

    recipe: str
    axes: Sequence[Axis]
    common: Sequence[str]
    runs: Path

    @classmethod
    def of(cls, recipe: str, given: Mapping[str, Any]) -> "Sweep":
        """Read a sweep from the options of ``train``, those of the grid as text."""
        if given["tag"] is not None:
            check_tag(given["tag"])
        axes = [each for name in TRAIN_AXES for each in axis(name, given[name])]
        options = [each for each in TRAIN if each.name in _COMMON]
        common = [part for each in options for part in each.arguments(given[each.name])]
        return cls(recipe, [*setting_axes(given["settings"] or ()), *axes], common, given["runs"] or runs_root())

    @property
    def many(self) -> bool:
        """Whether there is more than one cell."""
        return any(len(each.values) > 1 for each in self.axes)

    def cells(self) -> list[tuple[Cell, Recipe]]:
        """Return the cells and their recipes, each training once: ``--n 1 --algebra real,phm`` says the same twice."""
        found: dict[str, tuple[Cell, Recipe]] = {}
        for cell in cells_of(self.axes):
            try:
                pairs = zip(cell.arguments[::2], cell.arguments[1::2], strict=True)
                recipe = load_recipe(self.recipe, override(pairs))
            except RecipeError as error:
                raise type(error)(f"{error}\n(in the cell {cell.label})" if self.many else str(error)) from error
            found.setdefault(recipe.model_dump_json(), (cell, recipe))
        for source in {recipe.training.initialise_from for _, recipe in found.values()}:
            if source is not None:
                Run.open(source)
        return list(found.values())

    def listed(self) -> Shown:
        """Show a command for each cell, for a scheduler's job array: it starts the cell, or goes on with it."""
        from phmctl.training.resume import forbidden

        cells = self.cells()
        for (one, trained), (other, recipe) in combinations(cells, 2):
            if trained.variant == recipe.variant and not forbidden(trained, recipe):
                raise UserError(
                    f"--list: the cells {one.label} and {other.label} could be continued as one another; "
                    "leave --list out, or list them apart"
                )
        return listed([[*self.arguments(cell), "--resume", "auto"] for cell, _ in cells])

    def arguments(self, cell: Cell) -> list[str]:
        """Return the arguments that train a cell, in a run of its own."""
        return ["train", self.recipe, *cell.arguments, *self.common]

    def train(self, jobs: int = 1) -> Shown:
        """Train all cells, so many at once. Finished ones are left alone, stopped and failed ones are taken up again.

        A cell that fails stops no other. Ctrl-C and SIGTERM stop those that run, so that they save; the same sweep goes
        on with them.
        """
        works = dict[Job, Recipe]()
        for cell, recipe in self.cells():
            run = newest_of(self.runs, recipe)
            work = Job(cell.label, self.arguments(cell), run)
            if run is not None:
                work.state = run.state if run.state in ("finished", "running") else "waiting"
                arguments = [*work.arguments]
                if "--tag" in arguments:  # it names new runs
                    del arguments[(place := arguments.index("--tag")) : place + 2]
                work.arguments = [*arguments, "--resume", str(run.run.folder)]
            works[work] = recipe
        idle = [work for work in works if work.state != "waiting"]

        def look(work: Job) -> str:
            work.found = newest_of(self.runs, works[work])
            return _row(work)[2]

        code = carry_out([*works], jobs, look)
        told = []
        for work in works:
            now = None if work in idle else {"exit_code": work.code, "seconds": round(work.seconds, 3)}
            told.append({**work.as_json(), "now": now, "run": work.found and work.found.as_json()})
        head = ("cell", "state", "best", "min", "run")
        table = Table(f"\n{self.recipe}", head, [*map(_row, works)], (1, 2, 4), plain=True)
        document = {"recipe": self.recipe, "cells": told, "exit_code": code}
        return Shown(document, [table], remarks=what_is_left([*works]), code=code)


def _row(work: Job) -> tuple[str, ...]:
    run: Summary | None = work.found
    if run is None:
        return work.label, work.state, "–", "–", "–"
    return work.label, work.state, score(run), "–" if run.minutes is None else f"{run.minutes:.1f}", str(run.run.folder)


def newest_of(root: Path, recipe: Recipe) -> Summary | None:
    """Return the newest run of a recipe, its steps and its seed: what differs changes nothing that is trained."""
    for folder in reversed(versions_in(root / recipe.name / recipe.variant)):
        try:
            run = Run.open(folder)
        except RunError:  # `phmctl runs` says what is wrong with it
            continue
        if differences(run.recipe, recipe).keys() <= keys_changing(recipe, NOTHING):
            return summarise(run.folder)
    return None


def refuse_with_sweep(options: Mapping[str, Any]) -> None:
    """Refuse (UserError) options of ``train`` that mean one run, where there are several."""
    why = {
        "--resume": "a sweep goes on by itself with what was stopped",
        "--checkpoint": "a sweep goes on from the last one",
        "--processes": "each cell of a sweep is one process; --jobs says how many at once",
        "--dry-run": "it shows one training; --list shows the cells",
    }
    for name, given in options.items():
        if given:
            raise UserError(f"{name} is for one training, and several values are given: {why[name]}; leave it out")
