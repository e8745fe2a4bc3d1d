"""``eval`` of several runs, or with several values: each is scored in a process of its own."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl.console import Table
from phmctl.recipe.loading import number, whole_number
from phmctl.runs.find import find_run, select_runs
from phmctl.runs.results import scores_of
from phmctl.sweeps.cells import Cell, axis, cells_of
from phmctl.sweeps.pool import Job, check_jobs, run_jobs
from phmctl.sweeps.progress import SweepProgress

# Options of `eval` that may have several values.
AXES = ("split", "checkpoint", "beam", "alpha", "execution")
_NUMBERS = {"beam": whole_number, "alpha": number}


@dataclass(frozen=True)
class EvalSweep:
    """What is to be scored: each run in each cell; `common` are further arguments of each command."""

    runs: Sequence[Path]
    cells: Sequence[Cell]
    common: Sequence[str]

    @classmethod
    def of(
        cls, names: Sequence[Path], every: bool, given: Mapping[str, str | None], options: Mapping[str, object]
    ) -> "EvalSweep":
        """Read a sweep from the options of ``eval``.

        Args:
            names: runs, exports, folders of versions (the newest is taken) or tags.
            every: take all runs that the names mean: of a recipe, of a variant.
            given: options by name, their values parted by commas.
            options: those of each command, by name; what is None, False or empty is left out.

        Raises:
            RunError: a name means no run.
            UserError: a value is empty, or no number where one is wanted.
        """
        runs = select_runs(names) if every else [find_run(name) for name in names]
        axes = [each for name in AXES for each in axis(name, given.get(name))]
        for each in axes:
            for value in each.values if each.name in _NUMBERS else ():
                _NUMBERS[each.name](each.option, value)
        common = [part for name, value in options.items() for part in _arguments(f"--{name.replace('_', '-')}", value)]
        return cls(runs, cells_of(axes), common)

    def arguments(self) -> Iterator[tuple[Path, Cell, list[str]]]:
        """Yield each run and cell, and the arguments that score it."""
        for run in self.runs:
            for cell in self.cells:
                yield run, cell, ["eval", str(run), *cell.arguments, *self.common]

    def commands(self) -> list[str]:
        """Return a command for each, for a scheduler's job array."""
        return [shlex.join(["phmctl", *arguments]) for _, _, arguments in self.arguments()]


def _arguments(option: str, value: object) -> list[str]:
    if value is None or value is False or value == 0:
        return []
    if isinstance(value, (list, tuple)):
        return [part for each in value for part in (option, str(each))]
    return [option] if value is True else [option, str(value)]


@dataclass
class Scored:
    """A run in a cell, the process that scores it, and the report that it gave; empty before, and where it failed."""

    run: Path
    cell: Cell
    job: Job
    report: Mapping[str, Any]

    @property
    def scores(self) -> dict[str, float]:
        """By name."""
        return scores_of(self.report) if self.report else {}

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        state, problem = self.job.state, self.job.problem if self.job.state == "failed" else None
        return {
            "run": str(self.run),
            "cell": self.cell.label,
            "state": state,
            "problem": problem,
            "report": self.report,
        }


@dataclass(frozen=True)
class EvalSweepReport:
    """What was found, and the exit code: 0, 1 where one failed, 128 + the signal that stopped it."""

    scored: Sequence[Scored]
    exit_code: int

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"cells": [each.as_json() for each in self.scored], "exit_code": self.exit_code}

    def table(self) -> Table:
        """Return a row for each run and cell."""
        names = list(dict.fromkeys(name for each in self.scored for name in each.scores))
        cells = ["cell"] if len({each.cell for each in self.scored}) > 1 else []
        rows = [
            (
                str(each.run),
                *([each.cell.label] if cells else []),
                str(each.report.get("checkpoint", "–")) if each.report else each.job.state,
                *(f"{each.scores[name]:.4g}" if name in each.scores else "–" for name in names),
            )
            for each in self.scored
        ]
        return Table("scores", ("run", *cells, "checkpoint", *names), rows, (1, 2)[: 1 + len(cells)], plain=True)

    def remarks(self) -> Iterator[str]:
        """Yield what failed and why, and what was not begun."""
        for each in self.scored:
            if each.job.state == "failed":
                yield f"failed: {each.job.label}\n  " + each.job.problem.replace("\n", "\n  ")
        left = sum(each.job.state in ("stopped", "waiting") for each in self.scored)
        if left:
            yield f"{left} of {len(self.scored)} are not scored; the same command goes on"


def evaluate_all(asked: EvalSweep, jobs: int = 1) -> EvalSweepReport:
    """Score all, so many at once. One that fails stops no other. What is translated already is not translated again.

    Raises:
        UserError: so many jobs bring the machine to a stand.
    """
    check_jobs(jobs)
    scored = [
        Scored(run, cell, Job(_label(run, cell, asked), [*arguments, "--json"]), {})
        for run, cell, arguments in asked.arguments()
    ]
    work = {id(each.job): each for each in scored}
    with SweepProgress(len(scored), 0) as progress:

        def changed(job: Job, line: str | None) -> None:
            if job.code is None:
                progress.said(job, line)
                return
            each = work[id(job)]
            each.report = _report(job)
            progress.ended(job, job.state, "  ".join(f"{name} {value:.4g}" for name, value in each.scores.items()))

        stopped = run_jobs([each.job for each in scored], jobs, changed)
    failed = any(each.job.state == "failed" for each in scored)
    return EvalSweepReport(scored, stopped or int(failed))


def _label(run: Path, cell: Cell, asked: EvalSweep) -> str:
    return f"{run} {cell.label}" if len(asked.cells) > 1 else str(run)


def _report(job: Job) -> dict[str, Any]:
    """Return the report that a process printed; the first, where it compared with several baselines."""
    if job.code != 0:
        return {}
    found = json.loads(job.answer)
    return dict(found["comparisons"][0] if "comparisons" in found else found)
