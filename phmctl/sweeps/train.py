"""``train`` with several values: every cell of the grid once, what is finished left alone, what was stopped resumed."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

from phmctl.console import Table
from phmctl.errors import RecipeError, RunError, UserError
from phmctl.recipe.loading import differences, load_recipe, override
from phmctl.recipe.schema import Recipe
from phmctl.recipe.sections import NOTHING, keys_changing
from phmctl.runs import Run, runs_root
from phmctl.runs.find import check_tag, versions_in
from phmctl.runs.show import score
from phmctl.runs.summary import Summary, summarise
from phmctl.sweeps.cells import Axis, Cell, axis, cells_of, setting_axes
from phmctl.sweeps.pool import Job, check_jobs, run_jobs
from phmctl.sweeps.progress import SweepProgress

# Options of `train` that may have several values, in the order in which the grid is gone through.
_AXES = ("execution", "init", "steps", "algebra", "n", "seed")


@dataclass(frozen=True)
class Sweep:
    """What a sweep was asked for.

    Attributes:
        recipe: a path or a shipped name.
        axes: options and their values.
        common: further arguments of each cell's command: ``--device cpu``.
        runs: the folder of runs.
    """

    recipe: str
    axes: Sequence[Axis]
    common: Sequence[str]
    runs: Path

    @classmethod
    def of(
        cls,
        recipe: str,
        given: Mapping[str, str | None],
        settings: Sequence[str],
        *,
        data: Path | None = None,
        runs: Path | None = None,
        tag: str | None = None,
    ) -> "Sweep":
        """Read a sweep from the options of ``train``.

        Args:
            recipe: a path or a shipped name.
            given: options by name, their values parted by commas; None where they are not given.
            settings: ``KEY=VALUE``, the values parted by commas.
            data: the data folder.
            runs: the folder of runs.
            tag: of all runs.

        Raises:
            UserError: a value is empty, or the tag is no name.
        """
        if tag is not None:
            check_tag(tag)
        axes = [*setting_axes(settings), *(each for name in _AXES for each in axis(name, given.get(name)))]
        options = {"--device": given.get("device"), "--data": data, "--runs": runs, "--tag": tag}
        common = [part for name, value in options.items() if value is not None for part in (name, str(value))]
        return cls(recipe, axes, common, runs or runs_root())

    @property
    def many(self) -> bool:
        """Whether there is more than one cell."""
        return any(len(each.values) > 1 for each in self.axes)

    def arguments(self, cell: Cell) -> list[str]:
        """Return the arguments that train a cell, in a run of its own."""
        return ["train", self.recipe, *cell.arguments, *self.common]

    def resolve(self, cell: Cell) -> Recipe:
        """Return a cell's recipe.

        Raises:
            RecipeError: the values do not go together; the message names the cell.
        """
        pairs = zip(cell.arguments[::2], cell.arguments[1::2], strict=True)
        try:
            return load_recipe(self.recipe, override(pairs))
        except RecipeError as error:
            raise type(error)(f"{error}\n(in the cell {cell.label})" if self.many else str(error)) from error

    def commands(self) -> list[str]:
        """Return a command for each cell, for a scheduler's job array: it starts the cell, or goes on with it.

        Raises:
            RecipeError: the values of a cell do not go together.
            UserError: two cells are the same training to ``--resume auto``, which the commands say.
        """
        from phmctl.training.resume import forbidden

        cells = distinct(self)
        for (one, trained), (other, recipe) in combinations(cells, 2):
            if trained.variant == recipe.variant and not forbidden(trained, recipe):
                raise UserError(
                    f"--list: the cells {one.label} and {other.label} could be continued as one another; "
                    "leave --list out, or list them apart"
                )
        return [shlex.join(["phmctl", *self.arguments(cell), "--resume", "auto"]) for cell, _ in cells]


@dataclass
class Trained:
    """A cell and its run.

    Attributes:
        cell: its place in the grid.
        recipe: its recipe.
        run: what is known of its run; None where there is none.
        job: the process that trained it now; None where there was nothing to do, or not yet.
        state: ``finished``, ``stopped``, ``failed``, ``running`` (by another process), or ``waiting``.
    """

    cell: Cell
    recipe: Recipe
    run: Summary | None
    job: Job | None = None
    state: str = "waiting"

    @property
    def folder(self) -> Path | None:
        """The run's."""
        return None if self.run is None else self.run.run.folder

    @property
    def problem(self) -> str | None:
        """Why it failed."""
        return self.job.problem if self.state == "failed" and self.job is not None else None

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        now = None if self.job is None else {"exit_code": self.job.code, "seconds": round(self.job.seconds, 3)}
        known = None if self.run is None else self.run.as_json()
        return {"cell": self.cell.label, "state": self.state, "problem": self.problem, "now": now, "run": known}


@dataclass(frozen=True)
class SweepReport:
    """How a sweep ended: its cells, and the exit code: 0, 1 where a cell failed, 128 + the signal that stopped it."""

    recipe: str
    cells: Sequence[Trained]
    exit_code: int

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"recipe": self.recipe, "cells": [cell.as_json() for cell in self.cells], "exit_code": self.exit_code}

    def tables(self) -> Iterator[Table]:
        """Yield a row for each cell."""
        rows = [_row(cell) for cell in self.cells]
        yield Table(f"\n{self.recipe}", ("cell", "state", "best", "min", "run"), rows, (1, 2, 4), plain=True)

    def remarks(self) -> Iterator[str]:
        """Yield what is to be said below: what failed and why, what is left to do."""
        for cell in self.cells:
            if cell.state == "failed":
                yield f"failed: {cell.cell.label}\n  " + (cell.problem or "").replace("\n", "\n  ")
        elsewhere = [cell.cell.label for cell in self.cells if cell.state == "running"]
        if elsewhere:
            yield f"trained by another process now: {', '.join(elsewhere)}"
        left = sum(cell.state in ("stopped", "waiting") for cell in self.cells)
        if left:
            yield f"{left} of {len(self.cells)} cells are not finished; the same command continues them"


def _row(cell: Trained) -> tuple[str, ...]:
    run = cell.run
    best = "–" if run is None else score(run)
    minutes = "–" if run is None or run.minutes is None else f"{run.minutes:.1f}"
    return cell.cell.label, cell.state, best, minutes, "–" if cell.folder is None else str(cell.folder)


def sweep(asked: Sweep, jobs: int = 1) -> SweepReport:
    """Train all cells, so many at once. Finished ones are left alone, stopped and failed ones are taken up again.

    A cell that fails stops no other. Ctrl-C and SIGTERM stop those that run, so that they save; the same sweep goes on
    with them.

    Raises:
        UserError: the values of a cell do not go together, or there are fewer threads than jobs.
    """
    check_jobs(jobs)
    cells = [_look(Trained(cell, recipe, None), asked) for cell, recipe in distinct(asked)]
    for cell in cells:
        if cell.state == "waiting":
            cell.job = Job(cell.cell.label, _command(asked, cell))
    work = {id(cell.job): cell for cell in cells if cell.job is not None}
    with SweepProgress(len(cells), len(cells) - len(work)) as progress:

        def changed(job: Job, line: str | None) -> None:
            if job.code is not None:
                _conclude(work[id(job)], asked)
                progress.ended(job, work[id(job)].state, _row(work[id(job)])[2])
            else:
                progress.said(job, line)

        stopped = run_jobs([cell.job for cell in cells if cell.job is not None], jobs, changed)
    failed = any(cell.state == "failed" for cell in cells)
    return SweepReport(asked.recipe, cells, stopped or int(failed))


def distinct(asked: Sweep) -> list[tuple[Cell, Recipe]]:
    """Return the cells and their recipes, each training once: ``--n 1 --algebra real,phm`` says the same twice.

    Raises:
        RecipeError: the values of a cell do not go together.
        RunError: a cell is to begin with a run that is not there.
    """
    found: dict[str, tuple[Cell, Recipe]] = {}
    for cell in cells_of(asked.axes):
        recipe = asked.resolve(cell)
        found.setdefault(recipe.model_dump_json(), (cell, recipe))
    for source in {recipe.training.initialise_from for _, recipe in found.values()}:
        if source is not None:
            Run.open(source)
    return list(found.values())


def _look(cell: Trained, asked: Sweep) -> Trained:
    """Find the newest run of a cell, and what state that leaves the cell in."""
    run = newest_of(asked.runs, cell.recipe)
    if run is None:
        return cell
    found = summarise(run.folder)
    return replace(cell, run=found, state=found.state if found.state in ("finished", "running") else "waiting")


def newest_of(root: Path, recipe: Recipe) -> Run | None:
    """Return the newest run of a recipe, its steps and its seed: what differs changes nothing that is trained."""
    for folder in reversed(versions_in(root / recipe.name / recipe.variant)):
        try:
            run = Run.open(folder)
        except RunError:  # `phmctl runs` says what is wrong with it
            continue
        if differences(run.recipe, recipe).keys() <= keys_changing(recipe, NOTHING):
            return run
    return None


def _command(asked: Sweep, cell: Trained) -> list[str]:
    resume = [] if cell.folder is None else ["--resume", str(cell.folder)]
    arguments = asked.arguments(cell.cell)
    if resume and "--tag" in arguments:  # it names new runs
        place = arguments.index("--tag")
        del arguments[place : place + 2]
    return [*arguments, *resume]


def _conclude(cell: Trained, asked: Sweep) -> None:
    """Look at a cell whose process has ended."""
    run = newest_of(asked.runs, cell.recipe)
    cell.run = None if run is None else summarise(run.folder)
    cell.state = cell.state if cell.job is None else cell.job.state


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
