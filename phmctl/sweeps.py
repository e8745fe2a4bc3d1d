"""``phmctl sweep``: train every combination of values, each in a process."""

import shlex
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from phmctl.console import Shown, Table, note
from phmctl.data.prepared import data_root
from phmctl.recipe.loading import common_overrides, resolve
from phmctl.recipe.schema import Recipe
from phmctl.runs.run import check_tag, runs_root
from phmctl.runs.summary import format_best, newest_of
from phmctl.signals import STOP_SIGNALS, StopRequest
from phmctl.tasks import trains
from phmctl.threads import check_jobs, shared

_STOPPED = {128 + number for number in STOP_SIGNALS}  # exit codes of a training that a signal stopped
_SIGNAL_POLL_SECONDS = 0.3


@dataclass(eq=False)
class Training:
    """A training of a sweep."""

    label: str  # the values that distinguish it
    recipe: Recipe
    options: Sequence[str]  # options of ``phmctl train``
    state: str = "waiting"  # waiting, finished, stopped, failed, or (in another process) running
    problem: str = ""  # the last lines on stderr, from an error on


def sweep(
    recipe: str,
    axes: Mapping[str, Sequence[int | str]],
    settings: Sequence[Sequence[str]],
    *,
    data: Path | None,
    runs: Path | None,
    tag: str | None,
    jobs: int,
    list_only: bool,
) -> Shown:
    """Train each combination of values: of options of ``train`` (`axes`) and of ``key=value`` (`settings`).

    Finished trainings are skipped, stopped trainings are continued. Raises UserError, DataError.
    """
    check_jobs(jobs)
    check_tag(tag)
    trainings = plan(recipe, axes, settings)
    places = [word for name, path in (("data", data), ("runs", runs)) if path for word in (f"--{name}", str(path))]
    named = ["--tag", tag] if tag else []
    if list_only:
        lines = [shlex.join(["phmctl", "sweep", recipe, *each.options, *places, *named]) for each in trainings]
        return Shown(lines, text="".join(f"{line}\n" for line in lines))

    def command_of(training: Training) -> list[str]:
        """Return the command of a training. It is empty if the training is finished, or another process runs it."""
        run = newest_of(training.recipe, runs_root(runs))
        if run is not None and run.state in ("finished", "running"):
            training.state = run.state
            return []
        begin = [recipe, *named] if run is None else [str(run.run.folder), "--resume"]
        return ["train", *begin, *training.options, *places]

    waiting = [training for training in trainings if command_of(training)]
    for training in waiting:
        trains(training.recipe).open(training.recipe, data_root(data))  # one error for all if it is not prepared
    code = run_commands(waiting, command_of, jobs) or int(any(each.state != "finished" for each in trainings))
    rows, documents = [], []
    for each in trainings:
        run = newest_of(each.recipe, runs_root(runs))
        if each.state == "stopped" and run is not None:
            each.state = run.state  # finished if the signal came after the last step
        figures = ("–", "–") if run is None else (format_best(run), str(run.run.folder))
        rows.append((each.label, each.state, *figures))
        document = {"training": each.label, "state": each.state, "problem": each.problem or None}
        documents.append(document | {"run": run and run.as_json()})
    notes = [f"failed: {each.label}\n{each.problem}" for each in trainings if each.state == "failed"]
    unfinished = sum(each.state not in ("finished", "failed") for each in trainings)
    if unfinished:
        notes.append(f"{unfinished} of {len(trainings)} trainings are not finished; the same command continues them")
    table = Table("", ("training", "state", "best", "run"), rows, text=(1, 3))
    return Shown({"trainings": documents, "exit_code": code}, [table], notes=notes, code=code)


def plan(recipe: str, axes: Mapping[str, Sequence[int | str]], settings: Sequence[Sequence[str]]) -> list[Training]:
    """Return a training for each combination of values. The last setting changes fastest. Raises RecipeError.

    Combinations with equal recipes, for example of ``--n 1 --algebra real,phm``, are one training.
    """
    choices = [[(name, value, f"{name}={value}") for value in values] for name, values in axes.items() if values]
    for values in settings:
        key_start = values[0].partition("=")[0].rfind(".") + 1  # the key's last name: dropout of model.dropout=0.1
        choices.append([("set", value, value[key_start:]) for value in values])
    trainings: dict[str, Training] = {}
    for combination in product(*choices):
        overrides = common_overrides(**{name: value for name, value, _ in combination if name != "set"})
        resolved = resolve(recipe, overrides, [str(value) for name, value, _ in combination if name == "set"])
        label = " ".join(choice[2] for choice, values in zip(combination, choices, strict=True) if len(values) > 1)
        options = [word for name, value, _ in combination for word in (f"--{name}", str(value))]
        trainings.setdefault(resolved.model_dump_json(), Training(label or "all values", resolved, options))
    return list(trainings.values())


def run_commands(
    trainings: Sequence[Training], command_of: Callable[[Training], Sequence[str]], jobs: int
) -> int | None:
    """Run the commands of trainings, `jobs` at once. Set the trainings' states, and return the exit code of a signal.

    A command is made when the training begins, because another sweep may have begun it. A failed training does not stop
    the others. After a signal no training begins, and those that run save and end.
    """
    environment = shared(jobs)
    pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
    running: dict[Training, subprocess.Popen[str]] = {}

    def train(training: Training) -> None:
        arguments = () if stop.received else command_of(training)
        if not arguments:
            return
        command = [sys.executable, "-P", "-m", "phmctl", *arguments]
        # In a new session a Ctrl-C in the terminal reaches the training once, from this process.
        with subprocess.Popen(
            command, env=environment, start_new_session=True, encoding="utf-8", errors="replace", **pipes
        ) as process:
            running[training] = process
            for line in process.stderr or ():
                note(f"{training.label}: {line.rstrip()}")
                goes_on = training.problem.startswith("error") and not line.startswith("error")
                training.problem = training.problem + line if goes_on else line
        del running[training]
        code = process.returncode  # negative if a signal came before the handler was installed
        training.state = "stopped" if {code, 128 - code} & _STOPPED else "failed" if code else "finished"
        training.problem = training.problem.strip() if training.state == "failed" else ""
        note(f"{training.label}: {training.state}")

    with StopRequest() as stop, ThreadPoolExecutor(jobs) as pool:
        futures, told = [pool.submit(train, training) for training in trainings], set[Training]()
        try:
            while wait(futures, _SIGNAL_POLL_SECONDS).not_done:
                for training, process in list(running.items()) if stop.received else ():
                    if training not in told:
                        process.terminate()
                        told.add(training)
        except BaseException:  # a second signal
            for process in list(running.values()):
                process.kill()
            raise
    for future in futures:
        future.result()  # an error of this process
    return stop.exit_code
