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
from phmctl.sweeps.cells import Cell, cells_of
from phmctl.sweeps.pool import Job
from phmctl.tasks.answers import p_words, signed


def cells(given: Mapping[str, Any]) -> list[Cell]:
    """Return a cell for each run that is meant, each split and each value. Raises RunError, UserError."""
    if given["probing"]:
        if given["every"] or len(given["names"]) > 1:
            raise UserError("--probing is for one run: its probes are many already; name one run")
        return cells_of(EVAL, given)
    opened = [open_model(run) for run in (select_runs(given["names"]) if given["every"] else given["names"])]
    own = given["source"] is None and given["table"] is None
    split = ",".join(splits_asked(opened, given["split"])) if own else given["split"]
    return cells_of(EVAL, {**given, "names": [run.folder for run in opened], "split": split, "every": False})


def jobs_of(cells: Sequence[Cell]) -> list[Job]:
    """Return a job for each scoring."""
    jobs = []
    for cell in cells:
        words = ["eval", *command_line(EVAL, cell.given)]
        jobs.append(Job(cell.label, [*words, "--json"], words, cell.given["names"][0]))
    return jobs


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
