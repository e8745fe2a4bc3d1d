"""``train``: from a recipe and prepared data to a run with checkpoints."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch

from phmctl.checkpoints import AVERAGE, Checkpoint, copy_tensors, model_tensors, saved_steps
from phmctl.console import note
from phmctl.devices import check_compiler, has_bfloat16, isolated, world
from phmctl.errors import UserError
from phmctl.recipe.schema import Recipe, TrainingSection
from phmctl.runs import Run
from phmctl.runs.find import runs_root
from phmctl.training.initial import Start, find_start
from phmctl.training.optimiser import steps_within
from phmctl.training.processes import Processes, joined, restarts
from phmctl.training.progress import summary_writer
from phmctl.training.saving import (
    average_checkpoints,
    averaged_steps,
    check_same,
    continue_at,
    data_of,
    finish,
    read_to_resume,
    run_to_resume,
    scheduled_steps,
)
from phmctl.training.signals import StopRequest
from phmctl.training.trainer import Trainer

if TYPE_CHECKING:
    from phmctl.tasks.base import Task


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended."""

    run: Run
    steps: int  # optimiser steps done in all
    steps_now: int  # those of this process
    seconds: float  # of this process
    best_score: float | None  # the task's score of the best checkpoint, higher is better; None before a validation
    best_step: int | None
    exit_code: int  # 130 or 143 when a signal stopped it, else 0

    def as_json(self) -> dict[str, Any]:
        return {
            "run": str(self.run.folder),
            "steps": self.steps,
            "steps_now": self.steps_now,
            "seconds": round(self.seconds, 3),
            "best_score": self.best_score,
            "best_step": self.best_step,
            "interrupted": self.exit_code != 0,
        }


def train(
    recipe: Recipe,
    *,
    data: Path | None = None,
    runs: Path | None = None,
    resume: bool | Literal["auto"] = False,
    run: Run | None = None,
    checkpoint: str = "last",
    quiet: bool = False,
    noted: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Train a recipe's model on its prepared data; :func:`phmctl.train` has the arguments' meanings and the errors.

    `noted` are further entries of a new run's ``environment.json``. What ``torchrun`` starts again continues the newest
    run, as with ``resume="auto"``. Torch's generators and threads are as before when it returns.
    """
    from phmctl.data.prepared.folder import data_root
    from phmctl.tasks.registry import kind_of

    root = runs or runs_root()
    with joined(recipe.training.timeout) as processes:
        with processes.agreed():
            old = run if processes.leads else None
            if old is not None:
                check_same(old, recipe)
            elif processes.leads and (resume or restarts()):
                old = run_to_resume(root, recipe, needed=resume is True)
            where = data or (data_of(old) if old else None) or data_root()
        where = processes.broadcast(where)
        with processes.agreed():
            task = kind_of(recipe).open(recipe, where)
            if recipe.training.minutes:
                minutes, recipe = recipe.training.minutes, _with_steps(recipe, task, old, processes)
                noted = {**(noted or {}), "minutes": minutes, "steps": recipe.training.steps}
        how: dict[str, Any] = {"checkpoint": checkpoint, "quiet": quiet, "processes": processes, "noted": noted}
        return train_task(task, recipe, root, old=old, data=where, **how)


def _with_steps(recipe: Recipe, task: "Task", old: Run | None, processes: Processes) -> Recipe:
    """Return a recipe with the steps that its minutes are: those of the run that goes on, or timed here."""
    training = recipe.training
    if processes.many:
        raise UserError("training.minutes times the steps of one process; with several give training.steps")
    if old is not None:
        steps = old.recipe.training.steps
    else:
        device = processes.device(training.device)
        steps = steps_within(training.minutes, task, training, device)
        short = f", fewer than the warm-up: {training.warmup:,}; lower training.warmup" * (steps < training.warmup)
        note(f"training.minutes = {training.minutes:g}: {steps:,} steps{short}")
    return recipe.model_copy(update={"training": training.model_copy(update={"steps": steps, "minutes": 0.0})})


def train_task(
    task: "Task",
    recipe: Recipe,
    root: Path,
    *,
    old: Run | None = None,
    data: Path | None = None,
    checkpoint: str = "last",
    quiet: bool = False,
    processes: Processes | None = None,
    noted: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Train any task; :func:`train` without the search for data and run.

    Each of `processes` calls this, and rank 0's `old`, the run to continue, counts. A run that cannot be continued, or
    whose checkpoint has the steps asked for already, is left as it was.
    """
    began = time.perf_counter()
    processes, settings = processes or Processes(), recipe.training
    with ExitStack() as stack:
        with processes.agreed():  # a run should not be made in vain
            task.check_data()
            device = check_machine(settings, processes)
            fresh = old is None or not saved_steps(old.checkpoints_folder)
            start = find_start(recipe, task) if processes.leads and fresh else None
        threads = settings.threads and max(settings.threads // world().local_size, 1)  # of those on this machine
        stack.enter_context(isolated(device, threads))
        environment = _environment(recipe, device, processes, data, start)
        stop = stack.enter_context(StopRequest(insist=not processes.many))
        run = point = None
        with processes.agreed():
            if processes.leads:
                if teacher := getattr(settings, "teacher", None):
                    environment["teacher_sha256"] = Run.open(teacher).weights("auto").sha256
                run = old or Run.create(root, recipe, environment={**environment, **(noted or {})}, fill=task.furnish)
                stack.enter_context(run.claimed())
                point = None if old is None else read_to_resume(task, old, checkpoint)
        run = Run(processes.broadcast(run.folder if run else Path()), recipe)
        counters = processes.broadcast(point.state if point else None)
        point = point or (None if counters is None else Checkpoint({}, counters))
        initial = start.tensors if start else None
        trainer = Trainer(task, run, device, processes, initial=initial, checkpoint=point, quiet=quiet)
        first, unfinished = trainer.state.step, not trainer.finished
        with processes.agreed():
            if start is not None:
                trainer.progress.say(start.summary())
            if old is not None:
                if unfinished:
                    continue_at(old, recipe, environment, point)
                else:
                    unfinished = finish(old, recipe, first)
        if processes.leads:
            stack.enter_context(run.attempted())
        if processes.broadcast(unfinished):
            _fit(trainer, stop)
        else:
            trainer.progress.say(_opening(trainer))
    state, seconds = trainer.state, time.perf_counter() - began
    best = state.best_score, state.best_step
    return TrainingResult(run, state.step, state.step - first, seconds, *best, stop.exit_code or 0)


def check_machine(settings: TrainingSection, processes: Processes | None = None) -> torch.device:
    """Return the device of a training; RecipeError: this machine lacks it, TensorBoard or a compiler."""
    device = (processes or Processes()).device(settings.device)
    if settings.tensorboard:
        summary_writer()
    if settings.compile:
        check_compiler(device)
    return device


def _environment(
    recipe: Recipe, device: torch.device, processes: Processes, data: Path | None, start: Start | None
) -> dict[str, Any]:
    bfloat16 = recipe.training.precision == "bfloat16" and has_bfloat16(device)
    noted = {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "precision": "bfloat16" if bfloat16 else "float32",
        "processes": processes.count,
    }
    noted |= {"initialised_from": start.record} if start else {}
    return noted | ({"data": str(data.resolve())} if data else {})


def _fit(trainer: Trainer, stop: StopRequest) -> None:
    with trainer.log, trainer.progress as progress:
        progress.say(_opening(trainer))
        if not trainer.fit(stop):
            _average(trainer)
        else:
            progress.say(f"stopped and saved at step {trainer.state.step}; continue with:")
            progress.say(trainer.run.resume_command)


def _opening(trainer: Trainer) -> str:
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    folder, step = trainer.run.folder, trainer.state.step
    verb = f"resuming {folder} at step {step}" if step else f"training {folder}"
    if trainer.finished:
        linear, limit = trainer.settings.schedule == "linear", "patience" if trainer.out_of_patience else "steps"
        how = "a linear schedule ends there" if linear and limit == "steps" else f"raise training.{limit} to go on"
        verb = f"nothing left to train: {folder} is at step {step}; {how}"
    many = f", {trainer.processes.count} processes" if trainer.processes.many else ""
    return f"{verb} ({parameters:,} parameters, {trainer.device}, seed {trainer.settings.seed}{many})"


def _average(trainer: Trainer) -> None:
    """Average the last checkpoints, if the recipe wants it and it is not done, and measure the result."""
    processes, settings, step = trainer.processes, trainer.settings, trainer.state.step
    folder, missing, steps = trainer.run.checkpoints_folder, False, list[int]()
    with processes.agreed():
        if processes.leads and settings.average:
            steps = scheduled_steps(folder, settings.save_every, step)[-settings.average :]
            missing = averaged_steps(folder) != steps or not trainer.log.has(AVERAGE, step)
            if missing:
                averaged = average_checkpoints(folder, steps)
                copy_tensors(model_tensors(trainer.model), averaged, folder / AVERAGE)
    if not processes.broadcast(missing):
        return
    processes.broadcast_tensors(model_tensors(trainer.model).values())
    metrics = trainer.evaluate()
    if not trainer.log.has(AVERAGE, step):
        trainer.log.add(AVERAGE, step, {**metrics, "checkpoints": len(steps)})
    figures = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    trainer.progress.say(f"average of {len(steps)} checkpoints: validation {figures}")
