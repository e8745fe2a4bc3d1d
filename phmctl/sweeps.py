"""Run a command once for each combination of option values, each combination in its own process.

Commas separate values: ``--n 1,2,4``, ``--set model.dropout=0.1,0.3``. Commas within quotes and brackets, as YAML reads
them, do not: ``--set 'description="one, two"'`` is one value. Finished trainings are skipped; stopped trainings are
resumed. The processes share the machine's threads.
"""

import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from phmctl.console import Shown, Table, note, warn
from phmctl.data.prepared import data_root
from phmctl.devices import check_jobs, cores, world
from phmctl.errors import RecipeError, UserError
from phmctl.exports import open_run_or_export
from phmctl.options import Call, combinations, split_values
from phmctl.recipe.loading import COMMON, common_overrides, resolve
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.runs.find import check_tag, runs_root, select_runs
from phmctl.runs.results import scores_of
from phmctl.runs.run import requested_splits
from phmctl.runs.summary import Summary, format_best, summarise
from phmctl.tasks import trains
from phmctl.tasks.base import Report
from phmctl.training.signals import STARTER, StopRequest

_OUTPUT_LINES = 30  # lines of a process's stderr that are kept for its error report
_KILL_AFTER_SECONDS = 20.0  # time between SIGTERM and SIGKILL
_STOPPED = (129, 130, 138, 143)  # exit codes: 128 + the signal
_SIGNAL_POLL_SECONDS = 0.3
_REPORT_SECONDS = 30.0  # time between two reports of a job's training steps


@dataclass(eq=False)
class Job:
    """A command of a sweep, and its outcome."""

    label: str  # the option values that distinguish it
    arguments: Sequence[str]  # of ``phmctl``
    listed: Sequence[str] = ()  # arguments that ``--list`` shows, for a job array
    state: str = "waiting"  # waiting, finished, stopped, failed, or running (in another process)
    code: int | None = None  # exit code; None until it ends, negative if a signal killed it
    stderr_tail: deque[str] = field(default_factory=lambda: deque(maxlen=_OUTPUT_LINES))
    output: str = ""  # stdout
    seconds: float = 0.0
    # Set by read_outcome:
    figures: dict[str, str] = field(default_factory=dict)  # cells of its row of the table, by column
    document: dict[str, Any] = field(default_factory=dict)  # its keys of the JSON output
    remarks: list[str] = field(default_factory=list)  # lines for stderr

    @property
    def problem(self) -> str | None:
        """The end of a failed job's stderr, from the last line with an error on."""
        if self.state != "failed":
            return None
        lines = list(self.stderr_tail)
        error_lines = [index for index, line in enumerate(lines) if line.startswith("error")]
        first = error_lines[-1] if error_lines else len(lines) - 1
        return "\n".join(lines[first:]) or "no error message"

    def read_outcome(self) -> None:
        """Set figures, document and remarks."""


def threads_per_job(jobs: int) -> int:
    """Return the number of threads of each process: ``OMP_NUM_THREADS``, or the available cores, divided by `jobs`."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    total = int(setting) if setting.isdecimal() else cores()
    return max(total // jobs, 1)


def run_jobs(jobs: Sequence[Job], at_once: int, changed: Callable[[Job, str | None], None]) -> int | None:
    """Run jobs, `at_once` at a time; return the exit code of a signal that stopped them, or None.

    A failed job does not stop the others; an error raised by `changed` stops all. `changed` is called when a job
    starts, for each line of its stderr, and when it ends. A signal is passed on to the running processes once, so that
    they save; a second signal ends them at once. If this process is killed, they save and end as well.
    """
    runner = _Runner(at_once, changed)
    with StopRequest() as stop, ThreadPoolExecutor(at_once) as pool:
        futures = [pool.submit(runner.run, job, stop) for job in jobs]
        try:
            while not runner.errors and wait(futures, _SIGNAL_POLL_SECONDS).not_done:
                if stop.received:
                    runner.terminate_once()
            if runner.errors:
                raise runner.errors[0]
            for future in futures:
                future.result()
        finally:  # after an error some jobs are still running
            pool.shutdown(wait=False, cancel_futures=True)
            runner.end(futures)
    return stop.exit_code


class _Runner:
    """Runs jobs, each in its own process; several threads may call :meth:`run`."""

    def __init__(self, at_once: int, changed: Callable[[Job, str | None], None]) -> None:
        self.errors: list[Exception] = []
        self._changed = changed
        self._lock = threading.Lock()
        self._running: dict[Job, subprocess.Popen[str]] = {}
        self._terminated: set[subprocess.Popen[str]] = set()
        self._environment = os.environ | {
            "OMP_NUM_THREADS": str(threads_per_job(at_once)),
            "PYTHONUNBUFFERED": "1",
            STARTER: str(os.getpid()),
        }

    def run(self, job: Job, stop: StopRequest) -> None:
        """Run a job to its end, unless a signal or an error came before."""
        if stop.received or self.errors:
            return
        started = time.monotonic()
        with (
            tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as output,
            subprocess.Popen(
                [sys.executable, "-m", "phmctl", *job.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="replace",
                env=self._environment,
                start_new_session=True,  # the terminal's Ctrl-C would be a second signal, which ends it without saving
            ) as process,
        ):
            self._running[job] = process
            self._report(job, None)
            for line in process.stderr or ():
                job.stderr_tail.append(line.rstrip("\n"))
                self._report(job, job.stderr_tail[-1])
            job.code, job.seconds = process.wait(), time.monotonic() - started
            output.seek(0)
            job.output = output.read()
        del self._running[job]
        if job.code == 0:
            job.state = "finished"
        elif job.code in _STOPPED or 128 - job.code in _STOPPED:  # by our handler, or before it was installed
            job.state = "stopped"
        else:
            job.state = "failed"
        self._report(job, None)

    def _report(self, job: Job, line: str | None) -> None:
        with self._lock:
            try:
                self._changed(job, line)
            except Exception as error:  # run_jobs raises it; raised here it would close the process's stderr
                self.errors.append(error)

    def terminate_once(self) -> None:
        """Send SIGTERM to the processes that have not got it yet."""
        if not self._terminated:
            note(f"stopping {len(self._running)} of the processes; they save first")
        for process in list(self._running.values()):
            if process not in self._terminated:
                self._terminated.add(process)
                process.terminate()

    def end(self, futures: Sequence["Future[None]"]) -> None:
        """End the processes that still run: SIGTERM, then SIGKILL."""
        for process in list(self._running.values()):
            process.terminate()
        if wait([future for future in futures if not future.cancelled()], _KILL_AFTER_SECONDS).not_done:
            for process in list(self._running.values()):
                process.kill()


def sweep_trainings(calls: Sequence[Call[Any]], jobs: int | None, *, list_only: bool) -> Shown:
    """Train each combination in its own process, or list the commands.

    Raises UserError, RunError, DataError.
    """
    check_jobs(jobs or 1)
    trainings = training_jobs(calls)
    if list_only:
        return _command_list(trainings)
    root = data_root(calls[0]["data"])
    for training in trainings:
        if training.state == "waiting":  # check the data here: otherwise each process would report that it is missing
            trains(training.recipe).open(training.recipe, root)
    return run_and_report(trainings, jobs or 1)


def training_jobs(calls: Sequence[Call[Any]]) -> list["TrainingJob"]:
    """Return a job for each training; a stopped training is resumed. Raises UserError, RunError.

    Combinations with equal recipes, such as ``--n 1 --algebra real,phm``, are one training.
    """
    first = calls[0]
    for name in ("resume", "checkpoint"):
        if first[name] not in (None, False, "auto"):
            raise UserError(f"--{name} is for one training; leave it out: a sweep resumes stopped trainings by itself")
    if world().size > 1:
        raise UserError("a sweep works in one process; start it without torchrun")
    if first["recipe"] is None:
        raise UserError("a sweep needs a RECIPE")
    check_tag(first["tag"])
    root = runs_root(first["runs"])
    jobs: dict[str, TrainingJob] = {}
    for call in calls:
        try:
            recipe = resolve(call["recipe"], common_overrides(**call.select(COMMON)), call["settings"])
        except RecipeError as error:
            raise type(error)(f"{error}\n(with {call.label})" if len(calls) > 1 else str(error)) from error
        key = recipe.model_dump_json()
        if key in jobs:
            continue
        if recipe.training.initialise_from is not None:
            Run.open(recipe.training.initialise_from, root)
        job = TrainingJob(call.label, call.command_line(), call.command_line(jobs=1), recipe=recipe, root=root)
        summary = newest_of(recipe, root)
        if summary is not None:
            resumed = call.with_arguments(tag=None, resume=summary.run.folder)  # a tag names new runs only
            job.arguments = resumed.command_line()
            if summary.state in ("finished", "running"):
                job.state = summary.state
            if first["tag"] not in (None, summary.tag):
                warn(f"--tag {first['tag']} does not name {summary.run.folder}: it is not a new run")
        jobs[key] = job
    return list(jobs.values())


@dataclass(eq=False, kw_only=True)
class TrainingJob(Job):
    """A training of a sweep."""

    recipe: Recipe
    root: Path  # folder of runs

    def read_outcome(self) -> None:
        summary = newest_of(self.recipe, self.root)
        self.document = {"run": summary and summary.as_json()}
        if summary is not None:
            minutes = "–" if summary.minutes is None else f"{summary.minutes:.1f}"
            self.figures = {"best": format_best(summary), "min": minutes, "run": str(summary.run.folder)}


def newest_of(recipe: Recipe, root: Path) -> Summary | None:
    """Return the newest run with the results of a recipe: its recipe differs only in keys that change no result."""
    for run in Run.trained_with(root, recipe, keys_changing(recipe, NOTHING)):
        return summarise(run.folder)
    return None


def scoring_calls(call: Call[Any], *, every: bool) -> list[Call[Any]]:
    """Return a call for each run, split and combination of values. Raises RunError, UserError.

    With `every` all runs that a name matches are scored, not only the newest.
    """
    names = call["run"]
    if call["probing"]:
        if every or len(names) > 1:
            raise UserError("--probing is for one run, with a probe for each task; name one run")
        return combinations(call)
    opened = [open_run_or_export(name) for name in (select_runs(names) if every else names)]
    models = list({model.folder.resolve(): model for model in opened}.values())
    calls = []
    for model in models:
        model_call = call.with_arguments(run=[model.folder])
        if call["source"] is None and call["table"] is None:
            splits = [name for value in split_values(call["split"]) for name in requested_splits([model], value)]
            split = ",".join(dict.fromkeys(splits))
            if split != call["split"]:
                model_call = model_call.with_arguments(split=split)
        model_calls = combinations(model_call)
        for scoring in model_calls:
            label = scoring.label
            if len(models) > 1:
                label = f"{model.folder} {label}" if len(model_calls) > 1 else str(model.folder)
            calls.append(replace(scoring, label=label))
    return calls


def score_once(call: Call[Report]) -> Shown:
    """Score a run in this process."""
    report = call(quiet=False)
    return Shown(report.as_json(), report.tables(), notes=[*getattr(report, "notes", ())])


def sweep_scorings(calls: Sequence[Call[Any]], jobs: int | None, *, list_only: bool, threads: int) -> Shown:
    """Score each combination in its own process, or list the commands."""
    check_jobs(jobs or 1)
    scorings = []
    for call in calls:
        listed = call.command_line(threads=threads or None)
        scorings.append(ScoringJob(call.label, [*listed, "--json"], listed, folder=call["run"]))
    if list_only:
        return _command_list(scorings)
    return run_and_report(scorings, jobs or 1)


@dataclass(eq=False, kw_only=True)
class ScoringJob(Job):
    """A scoring of a sweep."""

    folder: Path  # of the run or export

    def read_outcome(self) -> None:
        report = json.loads(self.output) if self.code == 0 else {}
        self.document = {"run": str(self.folder), "report": report}
        if report:
            self.figures = {"checkpoint": str(report.get("checkpoint", "–"))}
            self.figures |= {name: f"{value:.4g}" for name, value in scores_of(report).items()}


def _command_list(jobs: Sequence[Job]) -> Shown:
    lines = [shlex.join(["phmctl", *job.listed]) for job in jobs]
    return Shown(lines, text="".join(f"{line}\n" for line in lines))


def run_and_report(jobs: Sequence[Job], at_once: int) -> Shown:
    """Run the waiting jobs, `at_once` at a time, and return the outcome of all jobs."""
    for job in jobs:
        job.read_outcome()
    waiting = [job for job in jobs if job.state == "waiting"]
    progress = _Progress(len(jobs), done=len(jobs) - len(waiting))
    if progress.done:
        note(f"{progress.done} of {len(jobs)} cells: nothing to do")
    code = run_jobs(waiting, at_once, progress.changed)
    if not code:
        code = int(any(job.state in ("failed", "stopped") for job in jobs))
    columns = list(dict.fromkeys(name for job in jobs for name in job.figures))
    rows = [(job.label, job.state, *(job.figures.get(name, "–") for name in columns)) for job in jobs]
    cells = [{"cell": job.label, "state": job.state, "problem": job.problem, **job.document} for job in jobs]
    remarks = [line for job in jobs for line in job.remarks]
    for job in jobs:
        if job.problem:
            remarks.append(f"failed: {job.label}\n  " + job.problem.replace("\n", "\n  "))
    unfinished = sum(job.state not in ("finished", "failed") for job in jobs)
    if unfinished:
        remarks.append(f"{unfinished} of {len(jobs)} cells are not finished; the same command continues them")
    table = Table("", ("cell", "state", *columns), rows, text=(1, len(columns) + 1))
    return Shown({"cells": cells, "exit_code": code}, [table], remarks=remarks, code=code)


class _Progress:
    """Reports the progress of a sweep on stderr, with the time that is left for all cells."""

    def __init__(self, total: int, done: int) -> None:
        self.total, self.done = total, done
        self._began = time.monotonic()
        self._fractions: dict[Job, float] = {}  # trained part of each cell that was started here
        self._waiting = total - done
        self._next_report: dict[Job, float] = {}  # time of a job's next report of its training steps

    def changed(self, job: Job, line: str | None) -> None:
        if job.code is not None:
            self.done += 1
            self._fractions[job] = 1.0
            job.read_outcome()
            figures = "".join(f"  {name} {value}" for name, value in job.figures.items())
            note(f"[{self.done}/{self.total}] {job.label}: {job.state} after {job.seconds / 60:.1f} min{figures}")
        elif line is None:
            note(f"{job.label}: started")
        elif line.startswith("training "):  # names the run and its number of parameters
            note(f"{job.label}: {line}")
        elif (match := re.match(r"step (\d+)/(\d+) ", line)) and time.monotonic() >= self._next_report.get(job, 0.0):
            self._next_report[job] = time.monotonic() + _REPORT_SECONDS
            self._fractions[job] = int(match[1]) / int(match[2])
            note(f"{job.label}: {line}; all cells: {self._time_left()} left")

    def _time_left(self) -> timedelta:
        trained = sum(self._fractions.values())
        seconds = (time.monotonic() - self._began) * (self._waiting - trained) / trained
        return timedelta(seconds=round(seconds))
