"""``train``: from a recipe and prepared data to a run with checkpoints."""

import time
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from phmctl.console import note, warn
from phmctl.data.prepared import data_root
from phmctl.devices import check_compiler, has_bfloat16, isolated, torch_defaults, world
from phmctl.errors import OutputError, RecipeError, RunError, UserError
from phmctl.processes import Processes, joined, restarts
from phmctl.recipe.schema import Recipe, TrainingSection, differences, result_changes, training_changes
from phmctl.runs import RECIPE, Run
from phmctl.runs.run import ENVIRONMENT, describe_environment, read_tag, runs_root, write_recipe
from phmctl.saving import copy_tensors, model_tensors
from phmctl.signals import StopRequest
from phmctl.storage import (
    AVERAGE,
    MANIFEST,
    MODEL,
    MOMENTS,
    clear,
    discard,
    prune,
    read_checkpoint,
    read_manifest,
    read_state,
    saved_steps,
    step_name,
    step_of,
    verify_checkpoint,
    whole_steps,
    write_checkpoint,
    write_json,
    writing,
)
from phmctl.tasks import trains
from phmctl.threads import described, threads_of
from phmctl.training.progress import summary_writer
from phmctl.training.start import Start, find_start
from phmctl.training.trainer import Trainer, TrainingState, update_pointers

if TYPE_CHECKING:
    from phmctl.tasks.base import Task


@dataclass(frozen=True)
class TrainingResult:
    """The result of a training."""

    run: Run
    steps: int  # optimiser steps, those before a resumption included
    steps_now: int  # optimiser steps of this process
    seconds: float  # that this process took
    best_score: float | None  # the task's score of the best checkpoint, higher is better. None without a validation.
    best_step: int | None
    exit_code: int  # 130 or 143 if a signal stopped the training, else 0

    def as_json(self) -> dict[str, object]:
        return {
            "run": str(self.run.folder),
            "steps": self.steps,
            "steps_now": self.steps_now,
            "seconds": round(self.seconds, 3),
            "best_score": self.best_score,
            "best_step": self.best_step,
            "interrupted": self.exit_code != 0,
        }


@torch_defaults()
def train(
    recipe: Recipe,
    *,
    data: Path | None = None,
    runs: Path | None = None,
    resume: bool = False,
    run: Run | None = None,
    checkpoint: str = "last",
    record: Mapping[str, object] | None = None,
) -> TrainingResult:
    """Train a recipe's model on the prepared data. :func:`phmctl.train` describes the arguments and errors.

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
        tag = (record or {}).get("tag")
        if old is not None and tag not in (None, read_tag(old.folder)):
            raise UserError(f"tag={tag} names a new run, and resume continues {old.folder}: leave one of them out")
        if old is None and checkpoint != "last":
            raise UserError(f"checkpoint={checkpoint} says where to continue from, and no run has this recipe yet")
        return old, data or data_of(old)

    with joined(recipe.training.timeout) as processes:
        old, folder = processes.from_leader(find_run_and_data)
        with processes.agreed():
            task = trains(recipe).open(recipe, folder)
        return train_task(
            task, recipe, root, old=old, data=folder, checkpoint=checkpoint, processes=processes, record=record
        )


def data_of(run: Run | None) -> Path:
    """Return the data folder of a run's newest start, or the default one if there is no run or no folder."""
    environment = {} if run is None else run.environment()
    starts = [environment, *environment.get("resumed", [])]
    folders = [Path(start["data"]) for start in starts if "data" in start and Path(start["data"]).is_dir()]
    return folders[-1] if folders else data_root()


@torch_defaults()
def train_task(
    task: "Task",
    recipe: Recipe,
    root: Path,
    *,
    old: Run | None = None,
    data: Path | None = None,
    checkpoint: str = "last",
    processes: Processes | None = None,
    record: Mapping[str, object] | None = None,
) -> TrainingResult:
    """Train a recipe's model for a task that is bound to data, in a new run below `root` or in the run `old`.

    Every process of the training calls this function, and the arguments of rank 0 count. A run that cannot be resumed,
    or has no steps left, is not changed.
    """
    began = time.perf_counter()
    processes = processes or Processes()
    settings = recipe.training

    stored: dict[str, dict[str, Tensor]] | None = None  # the tensors of the checkpoint, in rank 0 alone
    with ExitStack() as stack:
        with processes.agreed():  # before a run is created
            task.check_data(root)
            device = check_machine(settings, processes)
            threads = settings.threads and max(settings.threads // world().local_size, 1)
            if old is not None and not settings.threads and not processes.many:
                threads = threads_of(old.environment())
            stack.enter_context(isolated(device, threads))
            starts_at_zero = old is None or not saved_steps(old.checkpoints_folder)
            start = find_start(recipe, task, root) if processes.leads and starts_at_zero else None
            environment = _environment(recipe, root, device, processes, data, start) if processes.leads else {}
        stop = stack.enter_context(StopRequest(second_ends=not processes.many))

        def open_run() -> tuple[Run, TrainingState | None]:
            nonlocal stored
            run = old or Run.create(root, recipe, environment=environment | dict(record or {}), fill=task.furnish)
            stack.enter_context(run.claimed())
            state, stored = (None, None) if old is None else read_to_resume(task, old, checkpoint)
            return replace(run, recipe=recipe), state

        run, state = processes.from_leader(open_run)
        trainer = Trainer(task, run, device, processes, state=state)
        trainer.begin(stored, start.tensors if start else None)
        first = trainer.state.step

        def reopen_run() -> bool:
            remains = old is None or reopen(old, recipe, environment, trainer)
            stack.enter_context(run.attempted())
            return remains

        if processes.from_leader(reopen_run):
            _fit(trainer, stop)
        else:
            note(_opening(trainer))
    state = trainer.state
    return TrainingResult(
        run=run,
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
    recipe: Recipe, root: Path, device: torch.device, processes: Processes, data: Path | None, start: Start | None
) -> dict[str, object]:
    """Return the entries of ``environment.json`` that depend on this training."""
    bfloat16 = recipe.training.precision == "bfloat16" and has_bfloat16(device)
    environment: dict[str, object] = {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "openmp": described(),
        "precision": "bfloat16" if bfloat16 else "float32",
        "processes": processes.count,
    }
    if start is not None:
        environment["initialised_from"] = start.record
    if data is not None:
        environment["data"] = str(data.resolve())
    teacher = getattr(recipe.training, "teacher", None)
    if teacher:
        environment["teacher_sha256"] = Run.open(teacher, root).weights("auto").sha256
    return environment


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
    if step < trainer.settings.steps:
        advice = "raise training.patience to continue"
    elif trainer.settings.schedule == "linear":
        advice = "its linear schedule ends there"
    return f"nothing left to train: {folder} is at step {step}; {advice} ({details})"


def _fit(trainer: Trainer, stop: StopRequest) -> None:
    """Train to the end, or until stopped, and average the last checkpoints if the recipe says so."""
    settings = trainer.settings

    with trainer.log:
        note(_opening(trainer))
        if settings.steps < settings.warmup:
            note(f"{settings.steps:,} steps are fewer than the warm-up's {settings.warmup:,}")
        elif settings.schedule == "linear" and settings.patience:
            note("training.patience can end the training before the linear schedule reaches 0")
        stopped = trainer.fit(stop)
        step = trainer.state.step
        if stopped:
            note(f"stopped and saved at step {step}; continue with:")
            note(trainer.run.resume_command)
            return
        steps = trainer.processes.from_leader(lambda: update_average(trainer)) if settings.average else []
        if not steps:
            return
        trainer.processes.broadcast_tensors(model_tensors(trainer.model).values())
        metrics = trainer.evaluate()
        if not trainer.log.has(AVERAGE, step):
            trainer.log.add(AVERAGE, step, {**metrics, "checkpoints": len(steps)})
        scores = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
        note(f"average of the checkpoints of steps {', '.join(map(str, steps))}: validation {scores}")


def update_average(trainer: Trainer) -> list[int]:
    """Average the models of the last checkpoints (Vaswani et al. 2017, §6.1) and load the average into the model.

    The checkpoint ``average`` is written. Sums are float64, and integer tensors are copied from the last step. A
    damaged checkpoint is left out, with a warning. Returns the averaged steps, or an empty list if nothing is to do.
    Raises RunError if no checkpoint is undamaged, and OutputError.
    """
    settings, final, folder = trainer.settings, trainer.state.step, trainer.run.checkpoints_folder
    earlier = range(settings.save_every, final, settings.save_every)
    wanted = [*earlier[max(len(earlier) + 1 - settings.average, 0) :], final]
    before = averaged_steps(folder) if trainer.log.has(AVERAGE, final) else []
    if before == wanted:
        return []
    steps: list[int] = []
    sums: dict[str, Tensor] = {}
    newest: dict[str, Tensor] = {}
    for step in wanted:
        try:
            newest = read_checkpoint(folder / step_name(step), ["model"]).tensors["model"]
        except RunError:
            if step == final and not steps:
                raise
            warn(f"{folder / step_name(step)} is missing or damaged, so the average leaves it out")
            continue
        steps.append(step)
        for name, tensor in newest.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor if name in sums else tensor.to(torch.float64)
    if before == steps:
        return []
    means = {name: (total / len(steps)).to(newest[name].dtype) for name, total in sums.items()}
    averaged = {name: means.get(name, tensor) for name, tensor in newest.items()}
    last = folder / step_name(steps[-1])
    state = read_state(last)
    state = {"steps": steps} | {key: state.get(key) for key in ("step", "stale", "best_step", "best_score")}
    write_checkpoint(folder / AVERAGE, {"model": averaged}, state, read_manifest(last).get("model"))
    copy_tensors(model_tensors(trainer.model), averaged, folder / AVERAGE)
    return steps


# ------------------------------------------------------------------------------------------------- a run is continued


def run_to_resume(root: Path, recipe: Recipe) -> Run | None:
    """Return the newest run that a recipe can resume, with or without a checkpoint, or None."""
    return next(Run.trained_with(root, recipe, training_changes), None)


def check_resumable(run: Run, recipe: Recipe) -> None:
    """Raise RecipeError, which names the keys, if a recipe cannot resume a run, RunError if it has no checkpoints."""
    if not run.checkpoints_folder.is_dir():
        raise RunError(f"{run.checkpoints_folder} was removed; leave resume out to start a new run, or put it back")
    changes = training_changes(run.recipe, recipe)
    if changes:
        lines = [f"  {key}: {before!r} in the run, {now!r} now\n" for key, (before, now) in changes.items()]
        raise RecipeError(
            f"the recipe differs from {run.folder / RECIPE}:\n{''.join(lines)}"
            "leave these values out, or leave resume out to start a new run"
        )


def averaged_steps(folder: Path) -> list[int]:
    """Return the steps that ``average`` was made from, or an empty list if it is missing or damaged."""
    with suppress(RunError):
        verify_checkpoint(folder / AVERAGE, ["model"])
        return list(read_state(folder / AVERAGE)["steps"])
    return []


def read_to_resume(
    task: "Task", run: Run, name: str = "last"
) -> tuple[TrainingState, dict[str, dict[str, Tensor]]] | tuple[None, None]:
    """Return the state and the tensors to resume from, or None for both before the first checkpoint. Raises RunError.

    ``last`` is the newest complete checkpoint. The pointer may be outdated after a kill.
    """
    task.check_run(run)
    folder = run.checkpoints_folder
    with suppress(OutputError):
        clear(folder / "*")
    steps = saved_steps(folder)
    complete = [step for step in steps if (folder / step_name(step) / MANIFEST).is_file()]
    averaged = averaged_steps(folder)
    if averaged and (not steps or (name == "last" and max(complete, default=0) < averaged[-1])):
        raise RunError(
            f"{run.folder} is trained to step {averaged[-1]}, and that checkpoint is missing or damaged. The average "
            f"has weights only; start a new run from it with init={run.folder}"
        )
    if name == "last":
        if not steps:
            return None, None
        if complete:
            name = step_name(complete[-1])
    path = run.checkpoint(name)
    if step_of(path.name) is None:
        raise RunError(f"{path} contains weights only; resume from last, best or a step")
    checkpoint = read_checkpoint(path, ["model", MOMENTS])
    run.check_model(path)
    return TrainingState.from_json(checkpoint.state, path), checkpoint.tensors


def reopen(run: Run, recipe: Recipe, environment: Mapping[str, object], trainer: Trainer) -> bool:
    """Prepare the folder of a resumed run. Return whether steps or the average may be computed.

    All other checks must have passed, and the caller must have claimed the run. Files of killed processes are removed
    or restored. If steps remain, later checkpoints and the average are removed, because training writes them again, and
    the environment gets a record of the resumption. Otherwise the pointers are repaired, and the average may be
    computed if the recipe gives the results of the run's and the checkpoint is the newest. Raises RunError and
    OutputError.
    """
    record, step = run.environment(), trainer.state.step
    if not trainer.finished and record.get("teacher_sha256") not in (None, environment.get("teacher_sha256")):
        raise RunError(f"the teacher of {run.folder} has other weights now; train a new student")
    folder = run.checkpoints_folder
    for parent in (run.folder, folder):
        clear(parent / "*")
    changes = differences(run.recipe, recipe)
    if trainer.finished:
        update_pointers(run, run.recipe.training)
        return not result_changes(run.recipe, recipe) and saved_steps(folder)[-1:] == [step]
    with writing(folder):
        if (folder / AVERAGE).is_dir():
            discard(folder / AVERAGE, MANIFEST, MODEL)
    steps = saved_steps(folder)
    if steps:
        prune(folder, {saved for saved in steps if saved <= step})
        run.set_pointer("last", step)
        best = trainer.state.best_step
        run.set_pointer("best", best if best in whole_steps(folder) else None)
    record.setdefault("resumed", []).append(describe_environment(recipe) | dict(environment))
    if record.get("unmodified") is not None:  # the recipe file's values of keys that options changed
        record["unmodified"] = {key: before for key, (before, _) in changes.items()} | record["unmodified"]
    write_json(run.folder / ENVIRONMENT, record)
    if changes:  # otherwise the user's comments stay
        write_recipe(run.folder, recipe)
    return True
