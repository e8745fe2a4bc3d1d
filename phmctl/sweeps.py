"""``train`` and ``eval`` with several values: a cell for each combination, each in a process of its own.

Commas part values: ``--n 1,2,4``, ``--set model.dropout=0.1,0.3``. Within quotes and brackets, as YAML reads them, they
do not: ``--set 'description="one, two"'`` is one value. What is finished is left alone, what was stopped goes on. The
machine's threads are divided among the processes.
"""

import json
import os
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from phmctl.console import Shown, Table, note, warn
from phmctl.data.prepared.folder import data_root
from phmctl.devices import check_jobs, cores, world
from phmctl.errors import RecipeError, RunError, UserError
from phmctl.exports import open_model
from phmctl.options import EVAL, TRAIN, Option, command_line
from phmctl.recipe.loading import COMMON, common_overrides, differences, resolve
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.runs.find import check_tag, runs_root, select_runs
from phmctl.runs.results import scores_of, significance_tests
from phmctl.runs.run import requested_splits
from phmctl.runs.summary import Summary, format_best, summarise
from phmctl.tasks.answers import ONE_SEED, p_words, signed
from phmctl.tasks.registry import kind_of
from phmctl.training.signals import STARTER, StopRequest

_KEPT = 30  # last lines of what a process says
_PATIENCE = 20.0  # seconds that a process told to stop at once has for it
_STOPPED = (129, 130, 138, 143)  # exit codes: 128 + the signal
_TICK = 0.3  # seconds between two looks at signals
_EVERY = 30.0  # seconds between two plain lines of one cell


@dataclass(frozen=True)
class Cell:
    label: str  # the values of it that differ from cell to cell
    given: dict[str, Any]  # the command's options, each with its value


def split_values(text: str) -> list[str]:
    """Return the values in a text, as they stand in a YAML list. What is no such list is one value."""
    try:
        listed = yaml.compose(f"[{text}]")
    except yaml.YAMLError:
        return [text]
    if not isinstance(listed, yaml.SequenceNode) or listed.end_mark.index != len(text) + 2:
        return [text]
    return [text[each.start_mark.index - 1 : each.end_mark.index - 1] for each in listed.value] or [text]


def cells_of(options: Sequence[Option], given: Mapping[str, Any]) -> list[Cell]:
    """Return a cell for each combination of values; those of the last option change fastest. Raises RecipeError."""
    axes: list[dict[str, tuple[Option, Any]]] = []  # by label
    for option in options:
        value = given.get(option.name)
        if not option.axis or value in (None, []):
            continue
        if option.argument:
            axes.append({str(each): (option, each) for each in value})
        elif option.many:
            for key, equals, text in (setting.partition("=") for setting in value):
                name = key.strip().rpartition(".")[2]
                axes.append({f"{name}={each}": (option, f"{key}{equals}{each}") for each in split_values(text)})
        else:
            axes.append({f"{option.name}={each}": (option, option.read(each)) for each in split_values(value)})
    cells = []
    for place in product(*(axis.items() for axis in axes)):
        own = {**given, **{option.name: [] for _, (option, _) in place if option.many}}
        for _, (option, value) in place:
            own[option.name] = [*own[option.name], value] if option.many else value
        labels = [label for axis, (label, _) in zip(axes, place, strict=True) if len(axis) > 1]
        cells.append(Cell(" ".join(labels) or "the only cell", own))
    return cells


@dataclass(eq=False)
class Job:
    label: str  # what it is called
    arguments: Sequence[str]  # of ``phmctl``
    listed: Sequence[str] = ()  # those of a job array
    about: Any = None  # what is looked at when it ended: a recipe and its folder of runs, or a run
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
        told_to_stop = job.code in _STOPPED or 128 - job.code in _STOPPED  # before it could save, or after
        job.state = "finished" if job.code == 0 else "stopped" if told_to_stop else "failed"
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


def training_jobs(cells: Sequence[Cell]) -> list[Job]:
    """Return a job for each training; one that was stopped goes on. A job array has a sweep of one cell for each.

    ``--n 1 --algebra real,phm`` says the same training twice: it is one. Raises UserError, RunError.
    """
    given = cells[0].given
    single = [name for name in ("resume", "checkpoint", "dry_run") if given[name] not in (None, False, "auto")]
    single += ["processes"] * (given["processes"] > 1 or world().size > 1)
    if single or given["recipe"] is None:
        what = f"--{single[0].replace('_', '-')} is for one training; leave it out" if single else "a RECIPE is wanted"
        raise UserError(f"{what}: a sweep goes on by itself with what was stopped; --list shows its cells")
    check_tag(given["tag"])
    jobs: dict[str, Job] = {}
    for cell in cells:
        common = common_overrides(**{name: cell.given[name] for name in COMMON})
        try:
            recipe = resolve(given["recipe"], common, cell.given["settings"] or ())
        except RecipeError as error:
            raise type(error)(f"{error}\n(in the cell {cell.label})" if len(cells) > 1 else str(error)) from error
        if (key := recipe.model_dump_json()) in jobs:
            continue
        if recipe.training.initialise_from is not None:
            Run.open(recipe.training.initialise_from)
        about = recipe, cell.given["runs"] or runs_root()
        run = newest_of(*about)
        further = {} if run is None else {"tag": None, "resume": run.run.folder}  # a tag names new runs
        words, listed = (["train", *command_line(TRAIN, each)] for each in ({**cell.given, **further}, cell.given))
        jobs[key] = Job(cell.label, words, [*listed, "--jobs", "1"], about)
        if run is not None and run.state in ("finished", "running"):
            jobs[key].state = run.state
        if run is not None and given["tag"] not in (None, run.tag):
            warn(f"{run.run.folder} is no new run: --tag {given['tag']} does not name it")
    return list(jobs.values())


def look_at_training(job: Job) -> None:
    run = newest_of(*job.about)
    job.found = {"run": run and run.as_json()}
    if run is not None:
        minutes = "–" if run.minutes is None else f"{run.minutes:.1f}"
        job.figures = {"best": format_best(run), "min": minutes, "run": str(run.run.folder)}


def newest_of(recipe: Recipe, root: Path) -> Summary | None:
    """Return the newest run of a recipe, its steps and its seed: what differs changes nothing that is trained."""
    for run in Run.versions(root, recipe):
        with suppress(RunError):  # what cannot be read is no run
            if differences(run.requested_recipe(), recipe).keys() <= keys_changing(recipe, NOTHING):
                return summarise(run.folder)
    return None


def scorings(given: Mapping[str, Any]) -> list[Cell]:
    """Return a cell for each run that is meant, each split and each value. Raises RunError, UserError."""
    if given["probing"]:
        if given["every"] or len(given["names"]) > 1:
            raise UserError("--probing is for one run: its probes are many already; name one run")
        return cells_of(EVAL, given)
    named = [open_model(run) for run in (select_runs(given["names"]) if given["every"] else given["names"])]
    opened = list({run.folder.resolve(): run for run in named}.values())
    cells = []
    for run in opened:
        split = given["split"]
        if given["source"] is None and given["table"] is None:
            splits = (name for part in split_values(split) for name in requested_splits([run], part))
            split = ",".join(dict.fromkeys(splits))
        own = cells_of(EVAL, {**given, "names": [run.folder], "split": split, "every": False})
        for cell in own:
            label = f"{run.folder} {cell.label}" if len(own) > 1 else str(run.folder)
            cells.append(Cell(cell.label if len(opened) == 1 else label, cell.given))
    return cells


def look_at_scoring(job: Job) -> None:
    """Take the report that a process printed."""
    report = json.loads(job.answer) if job.code == 0 else {}
    job.found = {"run": str(job.about), "report": report}
    if report:
        job.figures = {"checkpoint": str(report.get("checkpoint", "–"))}
        job.figures |= {name: f"{value:.4g}" for name, value in scores_of(report).items()}
        for name, change, p in significance_tests(report):
            job.figures |= {f"{name} −{report['against']}": signed(change), f"p of {name}": p_words(p)}
        job.remarks = [f"{job.label}: {line}" for line in report.get("differences", ())]


def sweep(command: str, given: dict[str, Any], run: Callable[..., Shown | None]) -> Shown | None:
    """Call `run` with what ``train`` or ``eval`` was given; where that has several values, do or list each cell.

    Raises UserError.
    """
    at_once, listing, training = given.pop("jobs"), given.pop("list_"), command == "train"
    cells = cells_of(TRAIN, given) if training else scorings(given)
    if len(cells) == 1 and at_once is None and not listing:
        return run(**cells[0].given)
    check_jobs(at_once or 1)
    if training:
        jobs = training_jobs(cells)
    else:
        asked = [(cell, ["eval", *command_line(EVAL, cell.given)]) for cell in cells]
        jobs = [Job(cell.label, [*words, "--json"], words, cell.given["names"][0]) for cell, words in asked]
    if listing:
        lines = [shlex.join(["phmctl", *job.listed]) for job in jobs]
        return Shown(lines, text="".join(f"{line}\n" for line in lines))
    for recipe, _ in (job.about for job in jobs if training and job.state == "waiting"):
        kind_of(recipe).open(recipe, given["data"] or data_root())  # else each cell would say that data is not prepared
    return carry_out(jobs, at_once or 1, look_at_training if training else look_at_scoring)


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
            figures = "".join(f"  {name} {value}" for name, value in job.figures.items())
            note(f"[{done}/{total}] {job.label}: {job.state} after {job.seconds / 60:.1f} min{figures}")
        elif line is None:
            note(f"{job.label}: started")
        elif line.startswith("step ") and time.monotonic() >= due.get(job, 0.0):
            due[job] = time.monotonic() + _EVERY
            note(f"{job.label}: {line}")

    code = run_jobs(todo, at_once, changed) or int(any(job.state in ("failed", "stopped") for job in jobs))
    names = list(dict.fromkeys(name for job in jobs for name in job.figures))
    rows = [(job.label, job.state, *(job.figures.get(name, "–") for name in names)) for job in jobs]
    told = [{"cell": job.label, "state": job.state, "problem": job.problem, **job.found} for job in jobs]
    remarks = [line for job in jobs for line in job.remarks]
    remarks += [f"failed: {job.label}\n  " + job.problem.replace("\n", "\n  ") for job in jobs if job.problem]
    if left := sum(job.state not in ("finished", "failed") for job in jobs):
        remarks.append(f"{left} of {total} cells are not finished; the same command continues them")
    tested = [ONE_SEED] if any(name.startswith("p of ") for name in names) else []
    table = Table("", ("cell", "state", *names), rows, text=(1, len(names) + 1), below=tested)
    return Shown({"cells": told, "exit_code": code}, [table], remarks=remarks, code=code)
