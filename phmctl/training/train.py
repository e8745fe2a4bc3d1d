"""``train``: from a recipe and prepared data to a run with checkpoints."""

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from phmctl.console import note
from phmctl.data.prepared import data_root
from phmctl.devices import check_compiler, has_bfloat16, isolated, torch_defaults, world
from phmctl.recipe.schema import Recipe, TrainingSection
from phmctl.runs import Run
from phmctl.runs.find import runs_root
from phmctl.saving import copy_tensors, model_tensors
from phmctl.storage import AVERAGE, Checkpoint, saved_steps
from phmctl.tasks import trains
from phmctl.training.initial import Start, find_start
from phmctl.training.optimiser import build_schedule
from phmctl.training.processes import Processes, joined, restarts
from phmctl.training.progress import summary_writer
from phmctl.training.saving import (
    average_checkpoints,
    averaged_steps,
    check_resumable,
    complete_run,
    continue_run,
    data_of,
    only_average_left,
    read_to_resume,
    run_to_resume,
    steps_to_average,
    undamaged_steps,
)
from phmctl.training.signals import StopRequest
from phmctl.training.trainer import Trainer

if TYPE_CHECKING:
    from phmctl.tasks.base import Task


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training."""

    run: Run
    steps: int  # optimiser steps, those before a resumption included
    steps_now: int  # optimiser steps of this process
    seconds: float  # of this process
    best_score: float | None  # the task's score of the best checkpoint, higher is better; None without a validation
    best_step: int | None
    exit_code: int  # 130 or 143 if a signal stopped the training, else 0

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


@dataclass(frozen=True)
class Plan:
    """The start of a training, which rank 0 decides and sends to the other processes."""

    run: Run
    state: dict[str, Any] | None  # counters of the checkpoint to resume from; None at step 0
    rates: Mapping[str, float]  # learning rate of each parameter as a multiple of the recipe's
    unfinished: bool  # whether steps or the average remain


@torch_defaults()
def train(
    recipe: Recipe,
    *,
    data: Path | None = None,
    runs: Path | None = None,
    resume: bool = False,
    run: Run | None = None,
    checkpoint: str = "last",
    quiet: bool = False,
    record: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Train a recipe's model on its prepared data; :func:`phmctl.train` describes the arguments and errors.

    `record` contains further entries for the ``environment.json`` of a new run. After a restart by ``torchrun`` the
    newest run is resumed, as with `resume`. Torch's generators and default dtype are restored at the end.
    """
    root = runs or runs_root()

    def find_run_and_data() -> tuple[Run | None, Path]:
        old = run
        if old is not None:
            check_resumable(old, recipe)
        elif resume or restarts():
            old = run_to_resume(root, recipe)
        return old, data or (data_of(old) if old else None) or data_root()

    with joined(recipe.training.timeout) as processes:
        old, data_folder = processes.from_leader(find_run_and_data)
        with processes.agreed():
            task = trains(recipe).open(recipe, data_folder)
        return train_task(
            task,
            recipe,
            root,
            old=old,
            data=data_folder,
            checkpoint=checkpoint,
            quiet=quiet,
            processes=processes,
            record=record,
        )


@torch_defaults()
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
    record: Mapping[str, Any] | None = None,
) -> TrainingResult:
    """Train any task: :func:`train` after the run to resume (`old`) and the data have been found.

    Every process calls this function; the arguments of rank 0 count. A run that cannot be resumed, or has all its
    steps, is not changed.
    """
    began = time.perf_counter()
    processes = processes or Processes()
    settings = recipe.training
    if old is not None and checkpoint == "last":
        finished_run = old
        last = processes.from_leader(lambda: only_average_left(finished_run, recipe))
        if last is not None:
            if processes.leads and not quiet:
                note(f"nothing left to train: {old.folder} is at step {last}, of which only the average is left")
            return TrainingResult(old, last, 0, time.perf_counter() - began, None, None, 0)
    with ExitStack() as stack:
        with processes.agreed():  # before a run is created
            task.check_data()
            device = check_machine(settings, processes)
            starts_at_zero = old is None or not saved_steps(old.checkpoints_folder)
            start = find_start(recipe, task, root) if processes.leads and starts_at_zero else None
        threads = settings.threads and max(settings.threads // world().local_size, 1)
        stack.enter_context(isolated(device, threads))
        stop = stack.enter_context(StopRequest(second_ends=not processes.many))
        trainer: Trainer | None = None

        def make_plan() -> Plan:
            nonlocal trainer
            environment = _environment(recipe, device, processes, data, start)
            run = old or Run.create(root, recipe, environment=environment | dict(record or {}), fill=task.furnish)
            run = replace(run, recipe=recipe)
            stack.enter_context(run.claimed())
            resumed = None if old is None else read_to_resume(task, old, checkpoint)
            initial = start.tensors if start else None
            trainer = Trainer(task, run, device, processes, initial=initial, checkpoint=resumed, quiet=quiet)
            if start is not None:
                trainer.progress.say(start.summary())
            unfinished = not trainer.finished
            if old is not None and unfinished:
                continue_run(old, recipe, environment, resumed)
            elif old is not None:
                unfinished = complete_run(old, recipe, trainer.state.step)
            stack.enter_context(run.attempted())
            return Plan(Run(run.folder, recipe), resumed.state if resumed else None, trainer.rates, unfinished)

        plan = processes.from_leader(make_plan)
        if trainer is None:
            resumed = None if plan.state is None else Checkpoint({}, plan.state)
            trainer = Trainer(task, plan.run, device, processes, rates=plan.rates, checkpoint=resumed, quiet=quiet)
        trainer.join_processes()
        first = trainer.state.step
        if plan.unfinished:
            _fit(trainer, stop)
        else:
            trainer.progress.say(_opening(trainer))
    state = trainer.state
    return TrainingResult(
        run=plan.run,
        steps=state.step,
        steps_now=state.step - first,
        seconds=time.perf_counter() - began,
        best_score=state.best_score,
        best_step=state.best_step,
        exit_code=stop.exit_code or 0,
    )


def check_machine(settings: TrainingSection, processes: Processes | None = None) -> torch.device:
    """Return the device of a training. Raises RecipeError if the machine lacks it, TensorBoard or a compiler."""
    device = (processes or Processes()).device(settings.device)
    if settings.tensorboard:
        summary_writer()
    if settings.compile:
        check_compiler(device)
    return device


def _environment(
    recipe: Recipe, device: torch.device, processes: Processes, data: Path | None, start: Start | None
) -> dict[str, Any]:
    """Return the entries of ``environment.json`` that depend on this training."""
    bfloat16 = recipe.training.precision == "bfloat16" and has_bfloat16(device)
    environment: dict[str, Any] = {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "precision": "bfloat16" if bfloat16 else "float32",
        "processes": processes.count,
    }
    if start is not None:
        environment["initialised_from"] = start.record
    if data is not None:
        environment["data"] = str(data.resolve())
    teacher = getattr(recipe.training, "teacher", None)
    if teacher:
        environment["teacher_sha256"] = Run.open(teacher).weights("auto").sha256
    return environment


def _fit(trainer: Trainer, stop: StopRequest) -> None:
    with trainer.log, trainer.progress as progress:
        progress.say(_opening(trainer))
        for remark in _cut_schedule(trainer.settings):
            progress.say(remark)
        if trainer.fit(stop):
            progress.say(f"stopped and saved at step {trainer.state.step}; continue with:")
            progress.say(trainer.run.resume_command)
            return
        for remark in _cut_schedule(trainer.settings, trainer.state.step):
            progress.say(remark)
        _average(trainer)


def _cut_schedule(settings: TrainingSection, last: int | None = None) -> Iterator[str]:
    """Yield a remark if a training may end, or ended at step `last`, before its learning rate's schedule does."""
    rate = "" if last is None else f"; the learning rate was {build_schedule(settings)(last):.2g} at the end"
    steps = last or settings.steps
    if steps < settings.warmup:
        yield f"{steps:,} steps are fewer than the warm-up's {settings.warmup:,}; lower training.warmup{rate}"
    elif settings.schedule == "linear" and settings.patience and last != settings.steps:
        ends = "can end" if last is None else "ended"
        yield f"training.patience {ends} the training before its linear schedule reaches 0{rate}"


def _opening(trainer: Trainer) -> str:
    """Return the first line of a training's output."""
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    details = f"{parameters:,} parameters, {trainer.device}, seed {trainer.settings.seed}"
    if trainer.processes.many:
        details += f", {trainer.processes.count} processes"
    folder, step = trainer.run.folder, trainer.state.step
    if not trainer.finished:
        beginning = f"resuming {folder} at step {step}" if step else f"training {folder}"
        return f"{beginning} ({details})"
    advice = "raise training.steps to continue"
    if trainer.out_of_patience:
        advice = "raise training.patience to continue"
    elif trainer.settings.schedule == "linear":
        advice = "its linear schedule ends there"
    return f"nothing left to train: {folder} is at step {step}; {advice} ({details})"


def _average(trainer: Trainer) -> None:
    """Average the last checkpoints and validate the average, if the recipe asks for it and it has not been done."""
    steps = trainer.processes.from_leader(lambda: _update_average(trainer))
    if not steps:
        return
    step = trainer.state.step
    trainer.processes.broadcast_tensors(model_tensors(trainer.model).values())
    metrics = trainer.evaluate()
    if not trainer.log.has(AVERAGE, step):
        trainer.log.add(AVERAGE, step, {**metrics, "checkpoints": len(steps)})
    scores = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    trainer.progress.say(f"average of the checkpoints of steps {', '.join(map(str, steps))}: validation {scores}")


def _update_average(trainer: Trainer) -> list[int]:
    """Write the average and load it into the model; return its steps, or an empty list if nothing is to be done."""
    step, folder = trainer.state.step, trainer.run.checkpoints_folder
    if not trainer.settings.average:
        return []
    steps, before = steps_to_average(trainer.settings, step), averaged_steps(folder)
    logged = trainer.log.has(AVERAGE, step)
    if logged and before == steps:
        return []
    steps = undamaged_steps(folder, steps)
    if logged and before == steps:
        return []
    averaged = average_checkpoints(folder, steps)
    copy_tensors(model_tensors(trainer.model), averaged, folder / AVERAGE)
    return steps
