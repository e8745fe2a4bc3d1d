"""``eval`` of several runs, or with several values: each is scored in a process of its own, which keeps its answers."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from phmctl.errors import UserError
from phmctl.exports import open_model
from phmctl.options import EVAL, command_line
from phmctl.runs.find import select_runs
from phmctl.runs.results import scores_of, tests_of
from phmctl.runs.run import splits_asked
from phmctl.sweeps.cells import Cell
from phmctl.sweeps.pool import Job
from phmctl.tasks.answers import p_words, signed

OPTIONS = EVAL


def expanded(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what was given with the folder of each run that is meant, and each split. Raises RunError, UserError."""
    if given["probing"]:
        if given["every"] or len(given["names"]) > 1:
            raise UserError("--probing is for one run: its probes are many already; name one run")
        return given
    opened = [open_model(run) for run in (select_runs(given["names"]) if given["every"] else given["names"])]
    own = given["source"] is None and given["table"] is None
    split = ",".join(splits_asked(opened, given["split"])) if own else given["split"]
    return {**given, "names": [run.folder for run in opened], "split": split, "every": False}


def jobs_of(cells: Sequence[Cell]) -> list[Job]:
    """Return a job for each scoring."""
    return [
        Job(cell.label, [*words, "--json"], cell.given["names"][0])
        for cell, words in zip(cells, listed(cells), strict=True)
    ]


def listed(cells: Sequence[Cell]) -> list[list[str]]:
    """Return the command of each scoring."""
    return [["eval", *command_line(EVAL, cell.given)] for cell in cells]


def look(job: Job) -> None:
    """Take the report that a process printed."""
    report = json.loads(job.answer) if job.code == 0 else {}
    job.found = {"run": str(job.about), "report": report}
    job.figures = {}
    if report:
        job.figures = {"checkpoint": str(report.get("checkpoint", "–"))}
        job.figures |= {name: f"{value:.4g}" for name, value in scores_of(report).items()}
        for name, change, p in tests_of(report):
            job.figures |= {f"{name} −{report['against']}": signed(change), f"p of {name}": p_words(p)}
        job.remarks = [f"{job.label}: {line}" for line in report.get("differences", ())]
