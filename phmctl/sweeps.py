"""``phmctl sweep``: train every combination of values, each in a process of its own."""

import os
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from phmctl.console import Shown, Table, note
from phmctl.data.prepared import data_root
from phmctl.recipe.loading import common_overrides, resolve
from phmctl.recipe.schema import Recipe
from phmctl.runs.find import check_tag, runs_root
from phmctl.runs.summary import format_best, newest_of
from phmctl.tasks import trains
from phmctl.threads import check_jobs, cores
from phmctl.training.signals import StopRequest

_STOPPED = {129, 130, 138, 143}  # exit codes of a training that a signal stopped
_SIGNAL_POLL_SECONDS = 0.3


@dataclass(eq=False)
class Training:
    """A training of a sweep."""

    label: str  # the values that distinguish it
    recipe: Recipe
    options: Sequence[str]  # of ``phmctl train``
    state: str = "waiting"  # waiting, finished, stopped, failed; or running, in another process
    problem: str = ""  # the last lines on stderr, from an error on


def sweep(
    recipe: str,
    axes: Mapping[str, Sequence[Any]],
    settings: Sequence[str],
    *,
    data: Path | None,
    runs: Path | None,
    tag: str | None,
    jobs: int,
    list_only: bool,
) -> Shown:
    """Train each combination of the values of `axes` (options of ``train``) and `settings`, or list the commands.

    Finished trainings are skipped, stopped trainings are continued. Raises UserError, DataError.
    """
    check_jobs(jobs)
    check_tag(tag)
    trainings = plan(recipe, axes, settings or ())
    places = [word for name, path in (("data", data), ("runs", runs)) if path for word in (f"--{name}", str(path))]
    named = ["--tag", tag] if tag else []
    if list_only:
        lines = [shlex.join(["phmctl", "sweep", recipe, *each.options, *places, *named]) for each in trainings]
        return Shown(lines, text="".join(f"{line}\n" for line in lines))
    commands = {}
    for training in trainings:
        run = newest_of(training.recipe, runs_root(runs))
        if run is not None and run.state in ("finished", "running"):
            training.state = run.state
            continue
        trains(training.recipe).open(training.recipe, data_root(data))  # one error for all if it is not prepared
        begin = [recipe, *named] if run is None else [str(run.run.folder), "--resume"]
        commands[training] = ["train", *begin, *training.options, *places]
    code = run_commands(commands, jobs) or int(any(each.state in ("failed", "stopped") for each in trainings))
    rows, documents, remarks = [], [], []
    for training in trainings:
        run = newest_of(training.recipe, runs_root(runs))
        figures = ("–", "–") if run is None else (format_best(run), str(run.run.folder))
        rows.append((training.label, training.state, *figures))
        document = {"training": training.label, "state": training.state, "run": run and run.as_json()}
        documents.append(document | {"problem": training.problem if training.state == "failed" else None})
        if training.state == "failed":
            remarks.append(f"failed: {training.label}\n  " + training.problem.strip().replace("\n", "\n  "))
    unfinished = sum(each.state not in ("finished", "failed") for each in trainings)
    if unfinished:
        remarks.append(f"{unfinished} of {len(trainings)} trainings are not finished; the same command continues them")
    table = Table("", ("training", "state", "best", "run"), rows, text=(1, 3))
    return Shown({"trainings": documents, "exit_code": code}, [table], remarks=remarks, code=code)


def plan(recipe: str, axes: Mapping[str, Sequence[Any]], settings: Sequence[str]) -> list[Training]:
    """Return a training for each combination of values; the last setting changes fastest. Raises RecipeError.

    Combinations with equal recipes, such as those of ``--n 1 --algebra real,phm``, are one training.
    """
    choices = [[(name, value, f"{name}={value}") for value in values] for name, values in axes.items() if values]
    for setting in settings:
        key, equals, text = setting.partition("=")
        short = key.rpartition(".")[2]
        choices.append([("set", f"{key}{equals}{value}", f"{short}={value}") for value in split_values(text)])
    trainings: dict[str, Training] = {}
    for combination in product(*choices):
        overrides = common_overrides(**{name: value for name, value, _ in combination if name != "set"})
        resolved = resolve(recipe, overrides, [value for name, value, _ in combination if name == "set"])
        label = " ".join(choice[2] for choice, values in zip(combination, choices, strict=True) if len(values) > 1)
        options = [word for name, value, _ in combination for word in (f"--{name}", str(value))]
        trainings.setdefault(resolved.model_dump_json(), Training(label or "all values", resolved, options))
    return list(trainings.values())


def split_values(text: str) -> list[str]:
    """Split a text at its top-level commas, as in a YAML list; a text that is not a list is one value."""
    try:
        node = yaml.compose(f"[{text}]")
    except yaml.YAMLError:
        return [text]
    if not isinstance(node, yaml.SequenceNode) or node.end_mark.index != len(text) + 2:
        return [text]
    return [text[item.start_mark.index - 1 : item.end_mark.index - 1] for item in node.value] or [text]


def run_commands(commands: Mapping[Training, Sequence[str]], jobs: int) -> int | None:
    """Run the commands of trainings, `jobs` at once; set their states, and return the exit code of a signal.

    A failed training does not stop the others. After a signal no training begins, and those that run save and end.
    """
    environment = {"OMP_NUM_THREADS": str(max(cores() // jobs, 1)), **os.environ}
    running: dict[Training, subprocess.Popen[str]] = {}

    def train(training: Training) -> None:
        if stop.received:
            return
        with subprocess.Popen(
            [sys.executable, "-P", "-m", "phmctl", *commands[training]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
            env=environment,
            start_new_session=True,  # a Ctrl-C in the terminal reaches it once, from this process
        ) as process:
            running[training] = process
            for line in process.stderr or ():
                note(f"{training.label}: {line.rstrip()}")
                is_after_error = training.problem.startswith("error") and not line.startswith("error")
                training.problem = training.problem + line if is_after_error else line
        del running[training]
        if process.returncode == 0:
            training.state = "finished"
        else:  # a negative code: by a signal before its handler was installed
            training.state = "stopped" if {process.returncode, 128 - process.returncode} & _STOPPED else "failed"
        note(f"{training.label}: {training.state}")

    with StopRequest() as stop, ThreadPoolExecutor(jobs) as pool:
        waiting, told = {pool.submit(train, training) for training in commands}, set[Training]()
        try:
            while waiting := wait(waiting, _SIGNAL_POLL_SECONDS).not_done:
                for training in set(running) - told if stop.received else ():
                    running[training].terminate()
                    told.add(training)
        except BaseException:  # a second signal
            for process in list(running.values()):
                process.kill()
            raise
    return stop.exit_code
