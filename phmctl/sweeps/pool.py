"""Several commands at once, each a process, with the machine's threads divided among them; and what people see of it.

On a terminal that is one table of what runs, elsewhere plain lines; all of it on stderr.
"""

import os
import queue
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import IO, Any

from phmctl.console import Shown, note, people, printable
from phmctl.devices import check_jobs, cores
from phmctl.training.signals import STARTER, StopRequest

_KEPT = 30  # last lines of what a process says
_PATIENCE = 20.0  # seconds that a process told to stop at once has for it
_STOPPED = (129, 130, 138, 143)  # exit codes: 128 + the signal
_TICK = 0.3  # seconds between two looks at signals
_EVERY = 30.0  # seconds between two plain lines of one cell
_REDRAW = 0.2  # seconds between two drawings, at least


@dataclass(eq=False)
class Job:
    """A command, what is known of it and what became of it."""

    label: str  # what it is called
    arguments: Sequence[str]  # of ``phmctl``
    found: Any = None  # what came of it, now or before
    state: str = "waiting"  # ``waiting``, ``finished``, ``stopped``, ``failed``, or ``running`` (by another process)
    code: int | None = None  # its exit code; None before it ended, negative for the signal that killed it
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))  # the last lines on its stderr
    answer: str = ""  # its stdout
    began: float | None = None  # when it was started, by the monotonic clock
    seconds: float = 0.0  # how long it took

    @property
    def problem(self) -> str | None:
        """What it said at its end, from the line that tells of the error on, where it failed."""
        if self.state != "failed":
            return None
        lines = list(self.said)
        first = max((index for index, line in enumerate(lines) if line.startswith("error")), default=len(lines) - 1)
        return "\n".join(lines[first:]) or "it said nothing"

    def as_json(self) -> dict[str, Any]:
        return {"cell": self.label, "state": self.state, "problem": self.problem}


def threads_each(jobs: int, threads: int = 0) -> int:
    """A process's share of the threads: of so many; of ``OMP_NUM_THREADS``; or of the cores that it may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max((threads or (int(asked) if asked.isdecimal() else cores())) // jobs, 1)


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
                    job.code, job.seconds = running.pop(job).wait(), time.monotonic() - (job.began or 0.0)
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


def carry_out(jobs: Sequence[Job], at_once: int, look: Callable[[Job], str]) -> int:
    """Do what is waiting, so many at once, and show it; one that fails stops no other. Return the exit code.

    `look` finds out what came of a job that has ended, and says it shortly.
    """
    check_jobs(at_once)
    todo, total = [job for job in jobs if job.state == "waiting"], len(jobs)
    done = total - len(todo)
    if done:
        note(f"{done} of {total} cells: nothing to do")
    console, drawn = people(), 0.0
    now, due = dict[Job, str](), dict[Job, float]()
    live = None
    if console.is_terminal:
        from rich.live import Live
        from rich.table import Table

        live = Live(console=console, auto_refresh=False, transient=True)

    def say(message: str) -> None:
        if live is None:
            note(message)
        else:
            live.console.print(printable(message), soft_wrap=True)

    def changed(job: Job, line: str | None) -> None:
        nonlocal done, drawn
        if job.code is not None:
            del now[job]
            done += 1
            best = look(job)
            say(f"[{done}/{total}] {job.label}: {job.state} after {job.seconds / 60:.1f} min, {best}")
        else:
            now[job] = line or ""
            if line is None:
                say(f"{job.label}: started")
            elif live is None and line.startswith("step ") and time.monotonic() >= due.get(job, 0.0):
                due[job] = time.monotonic() + _EVERY
                note(f"{job.label}: {line}")
        if live is not None and (job.code is not None or time.monotonic() - drawn >= _REDRAW):
            drawn = time.monotonic()
            title = f"{done} of {total} cells done"
            table = Table("cell", "min", "now", title=title, title_justify="left", box=None)
            for each, said in now.items():
                minutes = (drawn - (each.began or drawn)) / 60
                table.add_row(printable(each.label), f"{minutes:.1f}", printable(said))
            live.update(table, refresh=True)

    with live or nullcontext():
        stopped = run_jobs(todo, at_once, changed)
    return stopped or int(any(job.state == "failed" for job in jobs))


def what_is_left(jobs: Sequence[Job]) -> Iterator[str]:
    """Yield what failed and why, and what was not done."""
    for job in jobs:
        if job.problem is not None:
            yield f"failed: {job.label}\n  " + job.problem.replace("\n", "\n  ")
    elsewhere = [job.label for job in jobs if job.state == "running"]
    if elsewhere:
        yield f"done by another process now: {', '.join(elsewhere)}"
    left = sum(job.state in ("stopped", "waiting") for job in jobs)
    if left:
        yield f"{left} of {len(jobs)} cells are not finished; the same command continues them"


def listed(commands: Sequence[Sequence[str]]) -> Shown:
    """Show the commands of the cells, for a scheduler's job array."""
    lines = [shlex.join(["phmctl", *command]) for command in commands]
    return Shown(lines, text="".join(f"{line}\n" for line in lines))
