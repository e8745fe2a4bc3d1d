"""The cells of a sweep, several at once, each a process, with the machine's threads divided among them."""

import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import IO, Any

from phmctl.console import Shown, Table, note
from phmctl.devices import check_jobs, cores
from phmctl.sweeps.cells import cells_of
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
    about: Any = None  # what its command's module knows of it
    state: str = "waiting"  # ``waiting``, ``finished``, ``stopped``, ``failed``, or ``running`` (by another process)
    code: int | None = None  # its exit code; None before it ended, negative for the signal that killed it
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))  # the last lines on its stderr
    answer: str = ""  # its stdout
    began: float = 0.0  # when it was started, by the monotonic clock
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
    """Run commands, so many at once, to the end of all; one that fails stops no other.

    When this process is told to stop, so are the others, once: they save. Told twice, they stop at once. Where it is
    killed, they see that it is gone, and save and end as well.
    """
    events: queue.Queue[tuple[Job, str | None]] = queue.Queue()
    waiting, running, told = deque(jobs), dict[Job, subprocess.Popen[str]](), False
    environment = os.environ | {"OMP_NUM_THREADS": str(threads_each(at_once)), "PYTHONUNBUFFERED": "1"}
    environment[STARTER] = str(os.getpid())
    with StopRequest() as stop:
        try:
            while running or (waiting and not stop.received):
                while waiting and len(running) < at_once and not stop.received:
                    job = waiting.popleft()
                    running[job] = _start(job, environment, events)
                    changed(job, None)
                if stop.received and not told:
                    told = True
                    note(f"stopping {len(running)} of the processes; they save first")
                    _terminate(running)
                try:
                    job, line = events.get(timeout=_TICK)
                except queue.Empty:
                    continue
                if line is None:
                    job.code, job.seconds = running.pop(job).wait(), time.monotonic() - job.began
                    job.state = "finished" if job.code == 0 else "stopped" if job.code in _STOPPED else "failed"
                changed(job, line)
        finally:  # where something went wrong some still run: they stop at once
            _terminate(running)
            deadline = time.monotonic() + _PATIENCE
            for process in running.values():
                try:
                    process.wait(max(deadline - time.monotonic(), 0.1))
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
    return stop.exit_code


def _start(
    job: Job, environment: Mapping[str, str], events: "queue.Queue[tuple[Job, str | None]]"
) -> "subprocess.Popen[str]":
    # A session of its own: Ctrl-C would come from the terminal too, and a second signal means "at once".
    output = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115
    process = subprocess.Popen(
        [sys.executable, "-m", "phmctl", *job.arguments],
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    job.began = time.monotonic()

    def listen(stream: IO[str]) -> None:
        with stream, output:
            for line in stream:
                job.said.append(line.rstrip("\n"))
                events.put((job, job.said[-1]))
            process.wait()
            output.seek(0)
            job.answer = output.read()
        events.put((job, None))

    threading.Thread(target=listen, args=(process.stderr,), daemon=True).start()
    return process


def _terminate(running: Mapping[Job, "subprocess.Popen[str]"]) -> None:
    for process in running.values():
        if process.poll() is None:
            process.terminate()


def sweep(command: ModuleType, given: dict[str, Any], run: Callable[..., Shown | None]) -> Shown | None:
    """Call `run` with what was given; where that has several values, do or list each cell. Raises UserError."""
    at_once, listing = given.pop("jobs"), given.pop("list_")
    cells = cells_of(command.OPTIONS, command.expanded(given))
    if len(cells) == 1 and at_once is None and not listing:
        return run(**cells[0].given)
    if listing:
        lines = [shlex.join(["phmctl", *words]) for words in command.listed(cells)]
        return Shown(lines, text="".join(f"{line}\n" for line in lines))
    check_jobs(at_once or 1)
    return carry_out(command.jobs_of(cells), at_once or 1, command.look)


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
