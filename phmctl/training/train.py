"""``train``: from a recipe and prepared data to a run with checkpoints."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from phmctl.backends.choices import taken_from
from phmctl.backends.products import libraries
from phmctl.checkpoints import AVERAGE, Checkpoint, read_checkpoint, saved_steps
from phmctl.console import warn
from phmctl.devices import has_bfloat16, set_threads
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run, runs_root
from phmctl.runs.metrics import read_metrics
from phmctl.training.averaging import average_checkpoints, averaged_steps
from phmctl.training.choosing import settle_choices
from phmctl.training.division import pieces_of
from phmctl.training.initial import Start, find_start
from phmctl.training.metrics_log import MetricsLog, UnwrittenLog, summary_writer
from phmctl.training.processes import Processes, is_restart, job, joined
from phmctl.training.progress import ProgressLine
from phmctl.training.resume import (
    amend_recipe,
    check_position,
    check_same,
    newest_like,
    read_to_resume,
    run_of_job,
    run_to_resume,
    stands_at_its_end,
    take_over,
)
from phmctl.training.saving import clear_leftovers, settle
from phmctl.training.signals import StopRequest
from phmctl.training.trainer import Trainer
from phmctl.training.wrapping import load_whole

if TYPE_CHECKING:
    from phmctl.tasks.base import Task


@dataclass(frozen=True)
class TrainingResult:
    """How a training ended.

    Attributes:
        run: its directory.
        steps: optimiser steps done in all.
        steps_now: those of this process.
        seconds: of this process.
        best_score: the task's score of the best checkpoint, higher is better; None before the first validation.
        best_step: its step.
        exit_code: 130 or 143 when a signal stopped it, else 0.
    """

    run: Run
    steps: int
    steps_now: int
    seconds: float
    best_score: float | None
    best_step: int | None
    exit_code: int

    def as_json(self) -> dict[str, Any]:
        """Return what ``--json`` prints."""
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
    """Train a recipe's model on its prepared data.

    Args:
        recipe: the experiment.
        data: the data folder; by default the one that a run to continue was trained with, ``$PHMCTL_DATA`` or ``data``.
        runs: the folder of runs; by default ``$PHMCTL_RUNS`` or ``runs``.
        resume: continue the newest run that differs in nothing that a step computes instead of starting one;
            ``"auto"`` starts one where there is none. What ``torchrun`` starts again continues the run that it began.
        run: continue this one; implies `resume`.
        checkpoint: where to continue from: ``last``, ``best`` or ``step-…``.
        quiet: print nothing.
        noted: further entries of a new run's ``environment.json``.

    Raises:
        DataError: the data is not prepared.
        RunError, RecipeError: the run cannot be resumed, or not with this recipe.
        NonFiniteError: a loss or a gradient became NaN or infinite.
        OutputError: the folder of runs cannot be written.
    """
    from phmctl.data.prepared.folder import data_root
    from phmctl.tasks.registry import kind_of

    root = runs or runs_root()
    kind = kind_of(recipe)
    with joined(recipe.training.timeout) as processes:
        for caution in recipe.model.cautions if not quiet else ():
            warn(caution)
        with processes.agreed():
            old = _find_old(root, recipe, resume, run) if processes.leads else None
            where = data or _data_of(old) or data_root()
        where = processes.tell(where)
        with processes.agreed():
            task = kind.open(recipe, where)
        result = train_task(
            task,
            recipe,
            root,
            old=old,
            data=where,
            checkpoint=checkpoint,
            quiet=quiet,
            processes=processes,
            noted=noted,
        )
        if result.exit_code == 0 and processes.leads:
            kind.conclude(result.run, read_metrics(result.run.metrics_path))
    return result


def _find_old(root: Path, recipe: Recipe, resume: bool | Literal["auto"], run: Run | None) -> Run | None:
    """Return the run to continue; None to start one."""
    if run is not None:
        check_same(run, recipe)
        return run
    begun = run_of_job(root, recipe, job()) if is_restart() else None
    if begun is not None:
        check_same(begun, recipe)
        return begun
    if resume is True:
        return run_to_resume(root, recipe)
    return newest_like(root, recipe) if resume == "auto" else None


def _data_of(run: Run | None) -> Path | None:
    """Return the data folder that a run was trained with, if it is here."""
    if run is None:
        return None
    noted = run.environment()
    starts = [noted, *(each for each in noted.get("resumed", []) if isinstance(each, dict))]
    folders = [each["data"] for each in reversed(starts) if isinstance(each.get("data"), str)]
    return next((Path(folder) for folder in folders if Path(folder).is_dir()), None)


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

    Args:
        task: data, model, loss and metric.
        recipe: the experiment.
        root: the folder of runs, for a new one.
        old: the run to continue, or None.
        data: the data folder, which the run notes for who continues it.
        checkpoint: where to continue from.
        quiet: print nothing.
        processes: those that train together; each calls this, and the first one's `old` counts.
        noted: further entries of a new run's ``environment.json``.

    Raises:
        DataError: the data is not such that a training can begin.
        RunError: another process trains the run, or it cannot be continued. It is left as it was then, and also when
            the checkpoint has the steps asked for already.
        RecipeError: TensorBoard is asked for but not installed.
        NonFiniteError: a loss or a gradient became NaN or infinite.
        PhmctlError: the device's memory is too small.
        OutputError: the run cannot be written.
    """
    began = time.perf_counter()
    processes = processes or Processes()
    with processes.agreed():
        task.check_data()
        device = processes.device(recipe.training.device)
        set_threads(processes.threads(recipe.training.threads))
        if recipe.training.tensorboard:
            summary_writer()  # is it there? a run should not be made in vain
        start = _start_of(old, recipe, task) if processes.leads else None
        environment = _environment(recipe, device, processes) | (start.noted() if start else {})
        environment |= {"data": str(data.resolve())} if data else {}
    with ExitStack() as held, StopRequest(insist=not processes.many) as stop, processes.company():
        run, found = None, None
        with processes.agreed():
            if processes.leads:
                run = old or Run.create(root, recipe, environment={**environment, **(noted or {})}, fill=task.furnish)
                held.enter_context(run.claimed())
                found = None if old is None else _taken_up(task, old, checkpoint)
        run, found = _shared(run, found, recipe, processes)
        processes.note_run(run.resume_command)
        with processes.agreed():
            initial = processes.tell_tensors({"model": start.tensors} if start else None).get("model", {})
            trainer = _build(task, Run(run.folder, recipe), device, found, initial, quiet, processes)
            del initial
        _restore(trainer, found, run)
        with processes.agreed():
            if start is not None:
                trainer.progress.say(start.words())
            if old is not None and not trainer.finished:
                take_over(old, recipe, environment, found)
            elif old is not None:
                _settle_finished(old, recipe, found)
        if processes.leads:
            held.enter_context(run.attempted())
        begun = trainer.state.step
        if processes.tell(processes.leads and (not trainer.finished or stands_at_its_end(run, recipe, found))):
            with taken_from(settle_choices(trainer, processes), frozen=True):
                _fit(trainer, stop)
        else:
            trainer.progress.say(_opening(trainer))
    state = trainer.state
    seconds = time.perf_counter() - began
    return TrainingResult(
        trainer.run, state.step, state.step - begun, seconds, state.best_score, state.best_step, stop.exit_code or 0
    )


def _restore(trainer: Trainer, found: Checkpoint | None, run: Run) -> None:
    """Continue from what the first process has read, if it has; the tensors are held no longer than this."""
    processes = trainer.processes
    tensors = processes.tell_tensors(found.tensors if found and processes.leads else None, trainer.place)
    with processes.agreed():
        if found is not None:
            trainer.restore(Checkpoint(tensors, found.state), run)
            found.tensors.clear()


def _taken_up(task: "Task", old: Run, checkpoint: str) -> Checkpoint | None:
    """Return where a run of this task goes on; None where it has no checkpoint yet."""
    task.check_run(old)
    found = read_to_resume(old, checkpoint)
    check_position(task, found)
    return found


def _settle_finished(old: Run, recipe: Recipe, found: Checkpoint | None) -> None:
    """Finish what a kill may have left undone in a run that has no step to go."""
    clear_leftovers(old)
    if stands_at_its_end(old, recipe, found):
        old = amend_recipe(old, recipe)
    settle(old, old.recipe.training)


def _start_of(old: Run | None, recipe: Recipe, task: "Task") -> Start | None:
    """Return what the model begins with, if the recipe names a run; a run with checkpoints has begun already."""
    begun = old is not None and saved_steps(old.checkpoints_folder)
    return None if begun else find_start(recipe, task)


def _shared(
    run: Run | None, found: Checkpoint | None, recipe: Recipe, processes: Processes
) -> tuple[Run, Checkpoint | None]:
    """Return the first process's run and checkpoint in all; the others know the run's place and the state, no more."""
    folder = processes.tell(None if run is None else run.folder)
    state = processes.tell(None if found is None else found.state)
    return run or Run(folder or Path(), recipe), found or (None if state is None else Checkpoint({}, state))


def _environment(recipe: Recipe, device: torch.device, processes: Processes) -> dict[str, Any]:
    bfloat16 = recipe.training.precision == "bfloat16" and has_bfloat16(device)
    return {
        "device": str(device),
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "products": "+".join(libraries(device.type)),  # at hand; what was chosen of them stands under `choices`
        "precision": "bfloat16" if bfloat16 else "float32",
        "processes": processes.count,
        "job": job(),
    }


def _build(
    task: "Task",
    run: Run,
    device: torch.device,
    found: Checkpoint | None,
    initial: Mapping[str, Tensor],
    quiet: bool,
    processes: Processes,
) -> Trainer:
    """Build the trainer; the run is only read."""
    settings = run.recipe.training
    start = int(found.state["step"]) if found else 0
    log = _open_log(run, start, found) if processes.leads else UnwrittenLog()
    progress = ProgressLine(settings.steps, start, quiet=quiet or not processes.leads)
    return Trainer(task, settings, run, device, log, progress, processes=processes, initial=initial)


def _open_log(run: Run, start: int, found: Checkpoint | None) -> MetricsLog:
    board = run.folder / "tensorboard" if run.recipe.training.tensorboard else None
    return MetricsLog(run.metrics_path, start, board, found.state.get("logged") if found else None)


def _fit(trainer: Trainer, stop: StopRequest) -> None:
    with trainer.log, trainer.progress as progress:
        progress.say(_opening(trainer))
        pieces = pieces_of(trainer.settings.accumulate, trainer.processes.count)
        if pieces > 1:
            progress.say(
                f"training.accumulate = {trainer.settings.accumulate} gives {trainer.processes.count} processes no "
                f"whole micro-batch each: each one is divided in {pieces}, so dropout differs from one process's"
            )
        trainer.fit(stop)
        if stop.received is None:
            _average(trainer)
        else:
            progress.say(f"stopped and saved at step {trainer.state.step}; continue with:")
            progress.say(trainer.run.resume_command)


def _opening(trainer: Trainer) -> str:
    parameters = sum(parameter.numel() for parameter in trainer.model.parameters())
    folder, step = trainer.run.folder, trainer.state.step
    verb = f"resuming {folder} at step {step}" if step else f"training {folder}"
    if trainer.out_of_patience:
        verb = f"nothing left to train: {folder} stopped early at step {step} (training.patience)"
    elif trainer.finished:
        verb = f"nothing left to train: {folder} is at step {step}; raise training.steps to go on"
    many = f", {trainer.processes.count} processes" if trainer.processes.many else ""
    return f"{verb} ({parameters:,} parameters, {trainer.device}, seed {trainer.settings.seed}{many})"


def _averaged(trainer: Trainer, folder: Path, steps: list[int]) -> dict[str, Tensor] | None:
    """Return the average of some checkpoints, written if it was not; None if there is nothing left to do about it."""
    made = averaged_steps(folder) == steps
    if not steps or (made and trainer.log.has(AVERAGE, trainer.state.step)):
        return None
    return read_checkpoint(folder / AVERAGE, ["model"]).tensors["model"] if made else average_checkpoints(folder, steps)


def _average(trainer: Trainer) -> None:
    """Average the last checkpoints, if the recipe wants it and it is not done, and measure the result."""
    processes, folder = trainer.processes, trainer.run.checkpoints_folder
    steps, means = [], None
    with processes.agreed():
        if processes.leads and trainer.settings.average:
            steps = trainer.scheduled_steps()[-trainer.settings.average :]
            means = _averaged(trainer, folder, steps)
    if not processes.tell(means is not None):
        return
    means = processes.tell_tensors({"model": means} if means else None, trainer.place)["model"]
    load_whole(trainer.model, means, folder / AVERAGE)
    metrics = trainer.evaluate()
    if not trainer.log.has(AVERAGE, trainer.state.step):
        trainer.log.add(AVERAGE, trainer.state.step, {**metrics, "checkpoints": len(steps)})
    figures = "  ".join(f"{name} {value:.4g}" for name, value in metrics.items())
    trainer.progress.say(f"average of {len(steps)} checkpoints: validation {figures}")
