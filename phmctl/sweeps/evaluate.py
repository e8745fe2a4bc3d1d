"""``eval`` of several runs, or with several values: each is scored in a process of its own."""

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from phmctl.console import Table
from phmctl.errors import PhmctlError
from phmctl.exports import open_model
from phmctl.recipe.loading import number, whole_number
from phmctl.runs import check_checkpoint, check_split
from phmctl.runs.differences import difference_lines, run_differences
from phmctl.runs.find import find_run, select_runs
from phmctl.runs.results import find_result, scores_of, tests_of
from phmctl.sweeps.cells import Axis, Cell, axis, cells_of
from phmctl.sweeps.pool import Job, check_jobs, run_jobs
from phmctl.sweeps.progress import SweepProgress
from phmctl.tasks.answers import ONE_SEED
from phmctl.tasks.base import Asked
from phmctl.tasks.registry import kind_of

# Options of `eval` that may have several values.
AXES = ("split", "checkpoint", "beam", "alpha", "execution", "precision")
_NUMBERS = {"beam": whole_number, "alpha": number}


@dataclass(frozen=True)
class EvalSweep:
    """What is to be scored: each run in each cell; `options` are further ones of each command, by name."""

    runs: Sequence[Path]
    cells: Sequence[Cell]
    options: Mapping[str, object]

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
            UserError: a value is empty, or no number where one is wanted, or a name of nothing that any run has.
        """
        runs = select_runs(names) if every else [find_run(name) for name in names]
        axes = [each for name in AXES for each in axis(name, given.get(name))]
        for each in axes:
            for value in each.values if each.name in _NUMBERS else ():
                _NUMBERS[each.name](each.option, value)
        _check_names(runs, axes)
        return cls(runs, cells_of(axes), options)

    def arguments(self) -> Iterator[tuple[Path, Cell, list[str]]]:
        """Yield each run and cell, and the arguments that score it."""
        given = self.options.items()
        common = [part for name, value in given for part in _arguments(f"--{name.replace('_', '-')}", value)]
        for run in self.runs:
            for cell in self.cells:
                yield run, cell, ["eval", str(run), *cell.arguments, *common]

    def scored_before(self, run: Path, cell: Cell) -> list[dict[str, Any]]:
        """Return the reports that a cell was given before, if all are there, one for each baseline or one alone.

        What is wrong is for its process to say.
        """
        given = {name: value for name, value in self.options.items() if _arguments("", value)}
        given |= {option[2:]: value for option, value in zip(cell.arguments[::2], cell.arguments[1::2], strict=True)}
        if given.pop("cased", False):
            given["lowercase"] = False
        rivals = cast("Sequence[Path | None]", given.pop("against", [None]))
        for name in ("device", "threads"):
            given.pop(name, None)
        if "engine" in given or "quantize" in given:  # the export's results lie in the export
            return []
        try:
            opened = open_model(run)
            split, checkpoint = str(given.pop("split")), str(given.pop("checkpoint"))
            given |= {name: read(f"--{name}", str(given[name])) for name, read in _NUMBERS.items() if name in given}
            kind = kind_of(opened.recipe)
            own = kind.setting(Asked(opened, checkpoint, "auto", kind.check_options(given, kind.eval_options), split))
            baselines = [None if rival is None else open_model(rival) for rival in rivals]
            beside = [own if one is None else own.beside(one.name, one.weights(checkpoint)) for one in baselines]
            found = [result for setting in beside if (result := find_result(opened, setting)) is not None]
            if len(found) < len(baselines):
                return []
            return [
                {**result.report}
                if one is None
                else {**result.report, "differences": difference_lines(run_differences(one, opened), one.name)}
                for one, result in zip(baselines, found, strict=True)
            ]
        except PhmctlError:
            return []

    def commands(self) -> list[str]:
        """Return a command for each, for a scheduler's job array."""
        return [shlex.join(["phmctl", *arguments]) for _, _, arguments in self.arguments()]


def _check_names(runs: Sequence[Path], axes: Sequence[Axis]) -> None:
    """Refuse (RunError) a split and a checkpoint that none of the runs has."""
    opened = [open_model(run) for run in runs]
    for each in axes:
        for value in each.values:
            if each.name == "split":
                check_split(opened, value)
            elif each.name == "checkpoint":
                check_checkpoint(opened, value)


def _arguments(option: str, value: object) -> list[str]:
    if value is None or value is False or value == 0:
        return []
    if isinstance(value, (list, tuple)):
        return [part for each in value for part in (option, str(each))]
    return [option] if value is True else [option, str(value)]


@dataclass
class Scored:
    """A run in a cell, the process that scores it, and the reports that it gave, one for each baseline or one alone.

    There are none before, and where it failed; there is no process where they were there before.
    """

    run: Path
    cell: Cell
    job: Job | None
    reports: Sequence[Mapping[str, Any]]

    @property
    def report(self) -> Mapping[str, Any]:
        """The first report, which has the scores as all have; empty where there is none."""
        return self.reports[0] if self.reports else {}

    @property
    def state(self) -> str:
        """The process's; ``finished`` where there was nothing to do."""
        return "finished" if self.job is None else self.job.state

    @property
    def problem(self) -> str | None:
        """What its process said, where it failed."""
        return self.job.problem if self.job is not None and self.state == "failed" else None

    @property
    def scores(self) -> dict[str, float]:
        """By name."""
        return scores_of(self.report) if self.report else {}

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "run": str(self.run),
            "cell": self.cell.label,
            "state": self.state,
            "problem": self.problem,
            "report": {"comparisons": self.reports} if len(self.reports) > 1 else self.report,
        }


@dataclass(frozen=True)
class EvalSweepReport:
    """What was found, and the exit code: 0, 1 where one failed, 128 + the signal that stopped it."""

    scored: Sequence[Scored]
    exit_code: int

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"cells": [each.as_json() for each in self.scored], "exit_code": self.exit_code}

    def tables(self) -> Iterator[Table]:
        """Yield the scores, a row for each run and cell, and the tests, a row for each baseline and metric as well."""
        names = list(dict.fromkeys(name for each in self.scored for name in each.scores))
        cells = ["cell"] if len({each.cell for each in self.scored}) > 1 else []
        rows = [
            (
                str(each.run),
                *([each.cell.label] if cells else []),
                str(each.report.get("checkpoint", "–")) if each.report else each.state,
                *(f"{each.scores[name]:.4g}" if name in each.scores else "–" for name in names),
            )
            for each in self.scored
        ]
        yield Table("scores", ("run", *cells, "checkpoint", *names), rows, (1, 2)[: 1 + len(cells)], plain=True)
        tests = [
            (
                str(each.run),
                *([each.cell.label] if cells else []),
                report["against"],
                name,
                f"{change:+.2f}",
                f"{p:.4f}",
            )
            for each in self.scored
            for report in each.reports
            for name, change, p in tests_of(report)
        ]
        if tests:
            head = ("run", *cells, "against", "metric", "difference", "p")
            yield Table(f"tests; {ONE_SEED}", head, tests, (1, 2, 3)[: 2 + len(cells)], plain=True)

    def remarks(self) -> Iterator[str]:
        """Yield what failed and why, and what was not begun."""
        for each in self.scored:
            for report in each.reports:
                for line in report.get("differences", ()):
                    yield f"{each.run} against {report['against']}: {line}"
            if each.job is not None and each.problem is not None:
                yield f"failed: {each.job.label}\n  " + each.problem.replace("\n", "\n  ")
        left = sum(each.state in ("stopped", "waiting") for each in self.scored)
        if left:
            yield f"{left} of {len(self.scored)} are not scored; the same command continues"


def evaluate_all(asked: EvalSweep, jobs: int = 1) -> EvalSweepReport:
    """Score all, so many at once. One that fails stops no other, and what was scored before is left alone.

    Raises:
        UserError: so many jobs bring the machine to a stand.
    """
    check_jobs(jobs)
    scored = []
    for run, cell, arguments in asked.arguments():
        before = asked.scored_before(run, cell)
        job = None if before else Job(_label(run, cell, asked), [*arguments, "--json"])
        scored.append(Scored(run, cell, job, before))
    work = {id(each.job): each for each in scored if each.job is not None}
    with SweepProgress(len(scored), len(scored) - len(work)) as progress:

        def changed(job: Job, line: str | None) -> None:
            if job.code is None:
                progress.said(job, line)
                return
            each = work[id(job)]
            each.reports = _reports(job)
            progress.ended(job, job.state, "  ".join(f"{name} {value:.4g}" for name, value in each.scores.items()))

        stopped = run_jobs([each.job for each in work.values() if each.job is not None], jobs, changed)
    failed = any(each.state == "failed" for each in scored)
    return EvalSweepReport(scored, stopped or int(failed))


def _label(run: Path, cell: Cell, asked: EvalSweep) -> str:
    return f"{run} {cell.label}" if len(asked.cells) > 1 else str(run)


def _reports(job: Job) -> list[dict[str, Any]]:
    """Return the reports that a process printed, one for each baseline or one alone; none where it failed."""
    if job.code != 0:
        return []
    found = json.loads(job.answer)
    return list(found.get("comparisons", [found]))
