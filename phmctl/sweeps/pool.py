"""Several commands at once, each a process, with the machine's threads divided among them."""

import os
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO

from phmctl.console import note
from phmctl.errors import UserError
from phmctl.training.signals import STARTER, StopRequest

_KEPT = 30  # last lines of what a process says
_PATIENCE = 20.0  # seconds that a process told to stop at once has for it
_A_CORE = 8  # processes for each core, at most, as `train --processes` has it
_STOPPED = (129, 130, 138, 143)  # exit codes: 128 + the signal
_TICK = 0.3  # seconds between two looks at signals


@dataclass
class Job:
    """A command and what became of it."""

    label: str  # what it is called
    arguments: Sequence[str]  # of ``phmctl``
    code: int | None = None  # its exit code; None before it ended, negative for the signal that killed it
    said: deque[str] = field(default_factory=lambda: deque(maxlen=_KEPT))  # the last lines on its stderr
    answer: str = ""  # its stdout
    began: float | None = None  # when it was started, by the monotonic clock
    seconds: float = 0.0  # how long it took
    process: "subprocess.Popen[str] | None" = None

    @property
    def state(self) -> str:
        """``waiting`` (not ended), ``finished``, ``stopped`` by a signal that it heard, or ``failed``."""
        if self.code is None:
            return "waiting"
        return "finished" if self.code == 0 else "stopped" if self.code in _STOPPED else "failed"

    @property
    def problem(self) -> str:
        """What it said at its end, from the line that tells of the error on."""
        lines = list(self.said)
        first = max((index for index, line in enumerate(lines) if line.startswith("error")), default=len(lines) - 1)
        return "\n".join(lines[first:]) or "it said nothing"


def check_jobs(jobs: int, option: str = "--jobs") -> None:
    """Refuse (UserError) so many processes that a machine comes to a stand."""
    if jobs > _A_CORE * _cores():
        raise UserError(f"{option} {jobs}: this machine has {_cores()} cores; take {_A_CORE * _cores()} at most")


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads_each(jobs: int, threads: int = 0) -> int:
    """Return a process's share of the threads: of so many; of ``OMP_NUM_THREADS``; or of the cores that it may use."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    return max((threads or (int(asked) if asked.isdecimal() else _cores())) // jobs, 1)


def run_jobs(jobs: Sequence[Job], at_once: int, changed: Callable[[Job, str | None], None]) -> int | None:
    """Run commands, so many at once, to the end of all; one that fails stops no other.

    When this process is told to stop, so are the others, once: they save. Told twice, they stop at once. Where it is
    killed, they see that it is gone, and save and end as well.
    """
    events: queue.Queue[tuple[Job, str | None]] = queue.Queue()
    waiting, running = deque(jobs), list[Job]()
    environment = os.environ | {"OMP_NUM_THREADS": str(threads_each(at_once)), "PYTHONUNBUFFERED": "1"}
    environment[STARTER] = str(os.getpid())
    with StopRequest() as stop, _ended(running):
        told = False
        while running or (waiting and not stop.received):
            while waiting and len(running) < at_once and not stop.received:
                running.append(_start(waiting.popleft(), environment, events))
                changed(running[-1], None)
            if stop.received and not told:
                told = True
                note(f"stopping {len(running)} of the processes; they save first")
                _signal(running)
            for job, line in _events(events):
                if line is None:
                    _end(job)
                    running.remove(job)
                changed(job, line)
    return stop.exit_code


def _events(events: "queue.Queue[tuple[Job, str | None]]") -> Iterator[tuple[Job, str | None]]:
    """Yield what has happened, after waiting a little for it."""
    try:
        yield events.get(timeout=_TICK)
        while True:
            yield events.get_nowait()
    except queue.Empty:
        return


def _start(job: Job, environment: Mapping[str, str], events: "queue.Queue[tuple[Job, str | None]]") -> Job:
    # A session of its own: Ctrl-C would come from the terminal too, and a second signal means "at once".
    job.process = subprocess.Popen(
        [sys.executable, "-m", "phmctl", *job.arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
        env=environment,
        start_new_session=True,
    )
    job.began = time.monotonic()
    answer = threading.Thread(target=_read_answer, args=(job, job.process.stdout), daemon=True)
    answer.start()
    threading.Thread(target=_listen, args=(job, job.process.stderr, answer, events), daemon=True).start()
    return job


def _read_answer(job: Job, stream: IO[str]) -> None:
    with stream:
        job.answer = stream.read()


def _listen(job: Job, stream: IO[str], answer: threading.Thread, events: "queue.Queue[tuple[Job, str | None]]") -> None:
    """Pass on what a process says, and that it ended."""
    with stream:
        for line in stream:
            job.said.append(line.rstrip("\n"))
            events.put((job, job.said[-1]))
    answer.join()
    if job.process is not None:
        job.process.wait()
    events.put((job, None))


def _end(job: Job) -> None:
    if job.process is not None and job.began is not None:
        job.code, job.seconds = job.process.wait(), time.monotonic() - job.began


def _signal(running: Sequence[Job]) -> None:
    for job in running:
        if job.process is not None and job.process.poll() is None:
            job.process.terminate()


@contextmanager
def _ended(running: list[Job]) -> Iterator[None]:
    """Leave no process behind: those that still run, where something went wrong, are told to stop at once."""
    try:
        yield
    finally:
        if running:
            _signal(running)
            deadline = time.monotonic() + _PATIENCE
            for job in running:
                _wait_or_kill(job, deadline - time.monotonic())


def _wait_or_kill(job: Job, seconds: float) -> None:
    if job.process is None:
        return
    try:
        job.process.wait(max(seconds, 0.1))
    except subprocess.TimeoutExpired:
        job.process.kill()
        job.process.wait()
