"""What both sweeps do with their cells: carry out what is not done yet, and say what failed and what is left."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from phmctl.console import Shown
from phmctl.sweeps.cells import Cell
from phmctl.sweeps.pool import Job, check_jobs, run_jobs
from phmctl.sweeps.progress import SweepProgress


@dataclass
class Work:
    """A cell, the command that does it, and what is known of it."""

    cell: Cell  # its place in the grid
    label: str  # what people are told that it is
    arguments: Sequence[str]  # of ``phmctl``
    found: Any = None  # what came of it, now or before
    state: str = "waiting"  # ``waiting``, ``finished``, ``stopped``, ``failed``, or ``running`` (by another process)
    job: Job | None = None  # the process that does it now; None where there is nothing to do

    @property
    def problem(self) -> str | None:
        """What its process said, where it failed."""
        return self.job.problem if self.job is not None and self.state == "failed" else None

    def as_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {"cell": self.cell.label, "state": self.state, "problem": self.problem}


def carry_out(cells: Sequence[Work], jobs: int, look: Callable[[Work], str]) -> int:
    """Do what is waiting, so many at once; one that fails stops no other. Return the exit code.

    `look` finds out what came of a cell whose process has ended, and says it shortly.
    """
    check_jobs(jobs)
    for cell in cells:
        if cell.state == "waiting":
            cell.job = Job(cell.label, cell.arguments)
    work = {id(cell.job): cell for cell in cells if cell.job is not None}
    with SweepProgress(len(cells), len(cells) - len(work)) as progress:

        def changed(job: Job, line: str | None) -> None:
            if job.code is None:
                progress.said(job, line)
                return
            cell = work[id(job)]
            cell.state = job.state
            progress.ended(job, job.state, look(cell))

        stopped = run_jobs([cell.job for cell in work.values() if cell.job is not None], jobs, changed)
    return stopped or int(any(cell.state == "failed" for cell in cells))


def what_is_left(cells: Sequence[Work]) -> Iterator[str]:
    """Yield what failed and why, and what was not done."""
    for cell in cells:
        if cell.problem is not None:
            yield f"failed: {cell.label}\n  " + cell.problem.replace("\n", "\n  ")
    elsewhere = [cell.label for cell in cells if cell.state == "running"]
    if elsewhere:
        yield f"done by another process now: {', '.join(elsewhere)}"
    left = sum(cell.state in ("stopped", "waiting") for cell in cells)
    if left:
        yield f"{left} of {len(cells)} cells are not finished; the same command continues them"


def listed(commands: Sequence[Sequence[str]]) -> Shown:
    """Show the commands of the cells, for a scheduler's job array."""
    lines = [shlex.join(["phmctl", *command]) for command in commands]
    return Shown(lines, text="".join(f"{line}\n" for line in lines))
