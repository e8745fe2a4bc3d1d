"""``eval`` of several runs, or with several values: each is scored in a process of its own."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl.console import Shown, Table
from phmctl.errors import PhmctlError
from phmctl.exports import open_model
from phmctl.options import EVAL, EVAL_AXES, read_axes
from phmctl.runs.find import find_run, select_runs
from phmctl.runs.results import find_result, scores_of, tests_of
from phmctl.runs.run import check_checkpoint, check_split
from phmctl.runs.summary import difference_lines, run_differences
from phmctl.sweeps.cells import Cell, axis, cells_of
from phmctl.sweeps.pool import Job, carry_out, listed, what_is_left
from phmctl.tasks.answers import ONE_SEED, p_words, signed
from phmctl.tasks.base import Asked
from phmctl.tasks.registry import kind_of


@dataclass(frozen=True)
class EvalSweep:
    """What is to be scored: each run in each cell, with what else was given, by name."""

    runs: Sequence[Path]
    cells: Sequence[Cell]
    given: Mapping[str, Any]

    @classmethod
    def of(cls, names: Sequence[Path], every: bool, given: Mapping[str, Any]) -> "EvalSweep":
        """Read a sweep from the options of ``eval``, those of the grid as text; `every`: all runs that names mean."""
        runs = select_runs(names) if every else [find_run(name) for name in names]
        axes = [each for name in EVAL_AXES for each in axis(name, given.get(name))]
        cells = cells_of(axes)
        for cell in cells:
            read_axes(EVAL, EVAL_AXES, cell.values)
        opened = [open_model(run) for run in runs]
        for each in axes:
            for value in each.values if each.name in ("split", "checkpoint") else ():  # that none of the runs has
                check_split(opened, value) if each.name == "split" else check_checkpoint(opened, value)
        return cls(runs, cells, {name: value for name, value in given.items() if name not in EVAL_AXES})

    def arguments(self) -> Iterator[tuple[Path, Cell, list[str]]]:
        """Yield each run and cell, and the arguments that score it."""
        options = [each for each in EVAL if each.name in self.given]
        common = [part for each in options for part in each.arguments(self.given[each.name])]
        for run in self.runs:
            for cell in self.cells:
                yield run, cell, ["eval", str(run), *cell.arguments, *common]

    def listed(self) -> Shown:
        """Show a command for each, for a scheduler's job array."""
        return listed([arguments for _, _, arguments in self.arguments()])

    def scored_before(self, run: Path, cell: Cell) -> list[dict[str, Any]]:
        """The reports that a cell was given before, if all are there; what is wrong is for its process to say."""
        asked = {**self.given, **read_axes(EVAL, EVAL_AXES, cell.values)}
        split, checkpoint, rivals = asked.pop("split"), asked.pop("checkpoint"), asked.pop("against", None) or [None]
        if asked.get("engine") or asked.get("quantize"):  # the export's results lie in the export
            return []
        apart = ("device", "threads", "engine", "quantize")
        options = {name: value for name, value in asked.items() if value is not None and name not in apart}
        try:
            opened = open_model(run)
            kind = kind_of(opened.recipe)
            kind.require("eval", options)
            own = kind.setting(Asked(opened, checkpoint, "auto", options, split))
            reports = []
            for one in (rival and open_model(rival) for rival in rivals):
                setting = own if one is None else own.beside(one.name, one.weights(checkpoint))
                result = find_result(opened, setting)
                if result is None:
                    return []
                apart_by = one and difference_lines(run_differences(one, opened), one.name)
                reports.append({**result.report} if one is None else {**result.report, "differences": apart_by})
        except PhmctlError:
            return []
        return reports

    def evaluate(self, jobs: int = 1) -> Shown:
        """Score all, so many at once. One that fails stops no other, and what was scored before is left alone."""
        works, places = list[Job](), list[tuple[str, str]]()
        for run, cell, arguments in self.arguments():
            label = f"{run} {cell.label}" if len(self.cells) > 1 else str(run)
            before = self.scored_before(run, cell)
            works.append(Job(label, [*arguments, "--json"], before, "finished" if before else "waiting"))
            places.append((str(run), cell.label))
        code = carry_out(works, jobs, _look)
        cells, remarks = [], []
        for (run_name, cell_label), work in zip(places, works, strict=True):
            report = {"comparisons": work.found} if len(work.found) > 1 else work.found[0] if work.found else {}
            cells.append({"run": run_name, **work.as_json(), "cell": cell_label, "report": report})
            for each in work.found:
                remarks += [f"{run_name} against {each['against']}: {line}" for line in each.get("differences", ())]
        tables = _tables([place[: 1 + (len(self.cells) > 1)] for place in places], works)
        return Shown({"cells": cells, "exit_code": code}, tables, remarks=[*remarks, *what_is_left(works)], code=code)


def _look(work: Job) -> str:
    """Take the reports that a process printed, one for each baseline or one alone; none where it failed."""
    found = json.loads(work.answer) if work.code == 0 else {"comparisons": []}
    work.found = list(found.get("comparisons", [found]))
    return "  ".join(f"{name} {value:.4g}" for name, value in _scores(work).items())


def _scores(work: Job) -> dict[str, float]:
    return scores_of(work.found[0]) if work.found else {}


def _tables(places: Sequence[tuple[str, ...]], works: Sequence[Job]) -> Iterator[Table]:
    """Yield the scores, a row for each run and cell, and the tests, a row for each baseline and metric as well."""
    names = list(dict.fromkeys(name for work in works for name in _scores(work)))
    rows, tests = [], []
    for place, work in zip(places, works, strict=True):
        scores = _scores(work)
        checkpoint = str(work.found[0].get("checkpoint", "–")) if work.found else work.state
        rows.append((*place, checkpoint, *(f"{scores[name]:.4g}" if name in scores else "–" for name in names)))
        for report in work.found:
            found = tests_of(report)
            tests += [(*place, report["against"], name, signed(change), p_words(p)) for name, change, p in found]
    head = ("run", "cell")[: len(places[0])]
    yield Table("scores", (*head, "checkpoint", *names), rows, (1, 2)[: len(head)], plain=True)
    if tests:
        titles = (*head, "against", "metric", "difference", "p")
        yield Table(f"tests; {ONE_SEED}", titles, tests, (1, 2, 3)[: 1 + len(head)], plain=True)
