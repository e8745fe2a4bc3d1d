"""The cells of a sweep, several at once, each a process, with the machine's threads divided among them."""

import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

from phmctl.console import Shown, Table, note
from phmctl.devices import check_jobs, cores
from phmctl.training.signals import STARTER, StopRequest

_KEPT = 30  # last lines of what a process says
_PATIENCE = 20.0  # seconds that a process told to stop at once has for it
_STOPPED = (129, 130, 138, 143)  # exit codes: 128 + the signal
_TICK = 0.3  # seconds between two looks at signals
_EVERY = 30.0  # seconds between two plain lines of one cell


@dataclass(eq=False)
class Job:
    """A command, and what became of it."""

    label: str  # what it is called
    arguments: Sequence[str]  # of ``phmctl``
    listed: Sequence[str] = ()  # those of a job array, by another process
    about: Any = None  # what its command's module knows of it
    state: str = "waiting"  # ``waiting``, ``finished``, ``stopped``, ``failed``, or ``running`` (by another process)
    code: int | None = None  # its exit code; None before it ended, negative for the signal that killed it
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))  # the last lines on its stderr
    answer: str = ""  # its stdout
    seconds: float = 0.0  # how long it took
    figures: dict[str, str] = field(default_factory=dict)  # what came of it, for its line in the table
    found: dict[str, Any] = field(default_factory=dict)  # and in JSON
    remarks: list[str] = field(default_factory=list)  # what must be said with it

    @property
    def problem(self) -> str | None:
        """What it said at its end, from the line that tells of the error on, where it failed."""
        if self.state != "failed":
            return None
        lines = list(self.said)
        first = max((index for index, line in enumerate(lines) if line.startswith("error")), default=len(lines) - 1)
        return "\n".join(lines[first:]) or "it said nothing"


def threads_each(jobs: int) -> int:
    """A process's share of the threads: of ``OMP_NUM_THREADS``, or of the cores that it may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max((int(asked) if asked.isdecimal() else cores()) // jobs, 1)


def run_jobs(jobs: Sequence[Job], at_once: int, changed: Callable[[Job, str | None], None]) -> int | None:
    """Run commands, so many at once, to the end of all; one that fails stops no other, an error in `changed` all.

    When this process is told to stop, so are the others, once: they save. Told twice, they stop at once. Where it is
    killed, they see that it is gone, and save and end as well.
    """
    running, told, one_at_a_time = dict[Job, subprocess.Popen[str]](), set[subprocess.Popen[str]](), threading.Lock()
    environment = os.environ | {"OMP_NUM_THREADS": str(threads_each(at_once)), "PYTHONUNBUFFERED": "1"}
    environment[STARTER] = str(os.getpid())
    errors: list[Exception] = []

    def tell(job: Job, line: str | None) -> None:
        with one_at_a_time:
            try:
                changed(job, line)
            except Exception as error:  # raised below; here it would close the process's stderr while it saves
                errors.append(error)

    def work(job: Job) -> None:
        if stop.received or errors:
            return
        how: dict[str, Any] = {"text": True, "encoding": "utf-8", "errors": "replace", "env": environment}
        how["start_new_session"] = True  # Ctrl-C would come from the terminal too, and a second signal means "at once"
        command, began = [sys.executable, "-m", "phmctl", *job.arguments], time.monotonic()
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, **how
            ) as process,
        ):
            running[job] = process
            tell(job, None)
            for line in process.stderr or ():
                job.said.append(line.rstrip("\n"))
                tell(job, job.said[-1])
            job.code, job.seconds = process.wait(), time.monotonic() - began
            output.seek(0)
            job.answer = output.read()
        del running[job]
        job.state = "finished" if job.code == 0 else "stopped" if job.code in _STOPPED else "failed"
        tell(job, None)

    with StopRequest() as stop, ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(work, job) for job in jobs]
        try:
            while not errors and (seen := wait(futures, _TICK)).not_done:
                for future in seen.done:
                    future.result()
                if stop.received and not told:
                    note(f"stopping {len(running)} of the processes; they save first")
                for process in list(running.values()) if stop.received else ():
                    if process not in told:
                        told.add(process)
                        process.terminate()
            if errors:
                raise errors[0]
            for future in futures:
                future.result()
        finally:  # where something went wrong some still run: they stop at once
            pool.shutdown(wait=False, cancel_futures=True)
            for process in list(running.values()):
                process.terminate()
            if wait([each for each in futures if not each.cancelled()], _PATIENCE).not_done:
                for process in list(running.values()):
                    process.kill()
    return stop.exit_code


def sweep(command: ModuleType, given: dict[str, Any], run: Callable[..., Shown | None]) -> Shown | None:
    """Call `run` with what was given; where that has several values, do or list each cell. Raises UserError."""
    at_once, listing = given.pop("jobs"), given.pop("list_")
    cells = command.cells(given)
    if len(cells) == 1 and at_once is None and not listing:
        return run(**cells[0].given)
    check_jobs(at_once or 1)
    jobs = command.jobs_of(cells)
    if listing:
        lines = [shlex.join(["phmctl", *job.listed]) for job in jobs]
        return Shown(lines, text="".join(f"{line}\n" for line in lines))
    return carry_out(jobs, at_once or 1, command.look)


def carry_out(jobs: Sequence[Job], at_once: int, look: Callable[[Job], None]) -> Shown:
    """Do what is waiting, so many at once, and show what came of all.

    `look` finds out what came of a job: it sets its `figures` and what was `found`.
    """
    for job in jobs:
        look(job)
    todo, total = [job for job in jobs if job.state == "waiting"], len(jobs)
    done, due = total - len(todo), dict[Job, float]()
    if done:
        note(f"{done} of {total} cells: nothing to do")

    def changed(job: Job, line: str | None) -> None:
        nonlocal done
        if job.code is not None:
            done += 1
            look(job)
            figures = "  ".join(f"{name} {value}" for name, value in job.figures.items())
            note(f"[{done}/{total}] {job.label}: {job.state} after {job.seconds / 60:.1f} min, {figures}")
        elif line is None:
            note(f"{job.label}: started")
        elif line.startswith("step ") and time.monotonic() >= due.get(job, 0.0):
            due[job] = time.monotonic() + _EVERY
            note(f"{job.label}: {line}")

    code = run_jobs(todo, at_once, changed) or int(any(job.state == "failed" for job in jobs))
    names = list(dict.fromkeys(name for job in jobs for name in job.figures))
    rows = [(job.label, job.state, *(job.figures.get(name, "–") for name in names)) for job in jobs]
    told = [{"cell": job.label, "state": job.state, "problem": job.problem, **job.found} for job in jobs]
    remarks = [line for job in jobs for line in job.remarks]
    remarks += [f"failed: {job.label}\n  " + job.problem.replace("\n", "\n  ") for job in jobs if job.problem]
    if left := sum(job.state not in ("finished", "failed") for job in jobs):
        remarks.append(f"{left} of {total} cells are not finished; the same command continues them")
    table = Table("", ("cell", "state", *names), rows, text=(1, len(names) + 1))
    return Shown({"cells": told, "exit_code": code}, [table], remarks=remarks, code=code)
