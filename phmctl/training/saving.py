"""The files of a training: its state, its checkpoints, their average; and how a run is resumed.

The pointers ``last`` and ``best`` and the list of kept checkpoints follow from the checkpoints alone: the newest
complete one, and the one that its state names as the best. They are updated after every save and whenever a run is
resumed, so that a kill leaves at worst outdated pointers, which the next start corrects.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from phmctl.console import warn
from phmctl.errors import OutputError, RecipeError, RunError
from phmctl.recipe.loading import differences
from phmctl.recipe.models import CHOICE, NOTHING, keys_changing
from phmctl.recipe.schema import Recipe, TrainingSection
from phmctl.runs import RECIPE, Run
from phmctl.runs.find import ENVIRONMENT
from phmctl.runs.run import describe_environment, write_recipe
from phmctl.runs.summary import is_done
from phmctl.storage import (
    AVERAGE,
    FORMAT,
    MANIFEST,
    MODEL,
    MOMENTS,
    Checkpoint,
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

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

_Count = Annotated[int, Field(ge=0)]


class TrainingState(BaseModel):
    """The counters of a training. They contain no clock time: equal trainings have equal checkpoints."""

    model_config = ConfigDict(strict=True, extra="ignore")

    step: _Count = 0  # optimiser steps done
    epoch: _Count = 0  # of the next batch
    position: _Count = 0  # of the next batch in its epoch
    validated: _Count = 0  # step of the newest validation
    best_score: float | None = None  # higher is better
    best_loss: float | None = None  # validation loss at the best score
    best_step: _Count | None = None
    stale: _Count = 0  # validations since the best one
    target_tokens: _Count = 0  # trained on since step 1
    # Since the newest log line:
    window_loss: float = 0.0  # sum
    window_target_tokens: _Count = 0
    format: _Count = FORMAT  # changes with the order of batches, on which `position` depends

    @classmethod
    def from_json(cls, values: dict[str, Any], checkpoint: Path) -> Self:
        """Return the state that a checkpoint stores, without unknown keys. Raises RunError if it cannot be resumed."""
        if values.get("format") != FORMAT:
            raise RunError(
                f"{checkpoint} has format {values.get('format')!r}, and this phmctl resumes format {FORMAT}: "
                "decode with it, or train again"
            )
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            key = error.errors()[0]["loc"][0]
            raise RunError(f"{checkpoint} cannot be resumed: {key} in state.json is damaged") from None

    def note_score(self, score: float, loss: float, least_score: float = -math.inf) -> bool:
        """Count a validation and return whether it is the best so far: by score, and by loss if scores are equal.

        Scores below `least_score` count as equal. NaN is never the best.
        """
        self.validated = self.step
        improved = not math.isnan(score) and self._is_better(score, loss, least_score)
        if improved:
            self.best_score, self.best_loss, self.best_step = score, loss, self.step
            self.stale = 0
        else:
            self.stale += 1
        return improved

    def _is_better(self, score: float, loss: float, least_score: float) -> bool:
        if self.best_score is None:
            return True
        best_loss = math.inf if self.best_loss is None else self.best_loss
        return (max(score, least_score), -loss) > (max(self.best_score, least_score), -best_loss)


def scheduled_steps(folder: Path, save_every: int, final: int | None) -> list[int]:
    """Return the complete checkpoints at the save interval, and the final one, in ascending order.

    Checkpoints written by an interruption or for a new best score are excluded, so that the kept checkpoints do not
    depend on interruptions.
    """
    return [step for step in whole_steps(folder) if step == final or (step and step % save_every == 0)]


def steps_to_average(settings: TrainingSection, final: int) -> list[int]:
    """Return the steps of the last ``training.average`` checkpoints of a training that ends at step `final`."""
    earlier = range(settings.save_every, final, settings.save_every)
    return [*earlier[max(len(earlier) + 1 - settings.average, 0) :], final]


def undamaged_steps(folder: Path, steps: Sequence[int]) -> list[int]:
    """Return the steps with undamaged weights; a warning names the others. Raises RunError if there is none."""
    undamaged: list[int] = []
    for step in steps:
        try:
            verify_checkpoint(folder / step_name(step), ["model"])
        except RunError:
            if step == steps[-1] and not undamaged:
                raise
            warn(f"{folder / step_name(step)} is missing or damaged, so the average leaves it out")
        else:
            undamaged.append(step)
    return undamaged


def update_pointers(run: Run, settings: TrainingSection) -> None:
    """Set ``last`` and ``best`` and remove checkpoints that are not kept. Raises OutputError."""
    folder = run.checkpoints_folder
    steps = whole_steps(folder)
    if not steps:
        return
    newest = folder / step_name(steps[-1])
    state = TrainingState.from_json(read_state(newest), newest)
    best = state.best_step if state.best_step in steps else None
    run.set_pointer("last", state.step)
    run.set_pointer("best", best)
    finished = is_done(state.step, state.stale, settings.steps, settings.patience)
    scheduled = scheduled_steps(folder, settings.save_every, state.step if finished else None)
    kept = {state.step, *scheduled[-max(settings.keep, settings.average) :]}
    if best is not None:
        kept.add(best)
    prune(folder, kept)


def clear_leftovers(run: Run) -> None:
    """Remove or restore the files of killed processes; the caller must have claimed the run. Raises OutputError."""
    for folder in (run.folder, run.checkpoints_folder):
        clear(folder / "*")


def average_checkpoints(folder: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """Average the models of some steps (Vaswani et al. 2017, §6.1), write ``average`` and return its tensors.

    Sums are float64; integer tensors are copied from the last step. Raises RunError and OutputError.
    """
    sums: dict[str, Tensor] = {}
    newest: dict[str, Tensor] = {}
    for step in steps:
        newest = read_checkpoint(folder / step_name(step), ["model"]).tensors["model"]
        for name, tensor in newest.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor if name in sums else tensor.to(torch.float64)
    means = {name: (total / len(steps)).to(newest[name].dtype) for name, total in sums.items()}
    averaged = {name: means.get(name, tensor) for name, tensor in newest.items()}
    last = folder / step_name(steps[-1])
    state = read_state(last)
    state = {"steps": list(steps)} | {key: state.get(key) for key in ("step", "stale", "best_step", "best_score")}
    write_checkpoint(folder / AVERAGE, {"model": averaged}, state, read_manifest(last).get("model"))
    return averaged


def averaged_steps(folder: Path) -> list[int]:
    """Return the steps that ``average`` was made from; an empty list if it is missing or damaged."""
    with suppress(RunError):
        verify_checkpoint(folder / AVERAGE, ["model"])
        return list(read_state(folder / AVERAGE)["steps"])
    return []


def run_to_resume(root: Path, recipe: Recipe) -> Run | None:
    """Return the newest run that a recipe can resume, with or without a checkpoint, or None.

    RecipeError names the keys that somebody changed in the run's ``recipe.yaml`` although its training depends on them.
    """
    for run in Run.trained_with(root, recipe, _free_to_change(recipe)):
        check_resumable(run, recipe)
        return run
    return None


def data_of(run: Run) -> Path | None:
    """Return the data folder of a run's newest training, if it exists here."""
    environment = run.environment()
    starts = [environment, *environment.get("resumed", [])]
    for start in reversed(starts):
        folder = start.get("data") if isinstance(start, dict) else None
        if isinstance(folder, str) and Path(folder).is_dir():
            return Path(folder)
    return None


def _free_to_change(recipe: Recipe) -> set[str]:
    """Return the keys that may change between two trainings of a run.

    ``training.steps`` may unless the schedule is linear, which ends at the last step.
    """
    keys = keys_changing(recipe, CHOICE, NOTHING)
    return keys if recipe.training.schedule == "linear" else keys | {"training.steps"}


def check_resumable(run: Run, recipe: Recipe) -> None:
    """Raise RecipeError if a recipe cannot resume a run, or the run's own recipe cannot any more."""
    trained = run.trained_recipe()
    changes = differences(trained, run.recipe.model_dump(mode="json")) | differences(
        trained, recipe.model_dump(mode="json")
    )
    changed = [key for key in changes if key not in _free_to_change(recipe)]
    if changed:
        lines = [f"  {key}: {changes[key][0]!r} in the run's training, {changes[key][1]!r} now" for key in changed]
        raise RecipeError(
            f"the recipe differs from the one that {run.folder} was trained with:\n"
            + "\n".join(lines)
            + f"\nrestore these values (the run's own recipe: {run.folder / RECIPE}), "
            "or leave --resume out to start a new run"
        )


def only_average_left(run: Run, recipe: Recipe) -> int | None:
    """Return the last step of a finished run whose newest checkpoints were removed, but not the average of them.

    None stands for any other run. Raises RunError if a recipe asks for another training than the finished one.
    """
    folder = run.checkpoints_folder
    averaged = averaged_steps(folder)
    if not averaged or max(whole_steps(folder), default=0) >= averaged[-1]:
        return None
    changes = differences(run.trained_recipe(), recipe.model_dump(mode="json")).keys() - keys_changing(recipe, NOTHING)
    changed = sorted(key for key in changes if not key.startswith("decoding."))
    if changed:
        raise RunError(
            f"{run.folder} cannot be continued with another {', '.join(changed)}: its checkpoint of step "
            f"{averaged[-1]} is incomplete or was removed, and its average has weights only; start a new run from it "
            f"with --init {run.folder}"
        )
    return averaged[-1]


def read_to_resume(task: "Task", run: Run, name: str = "last") -> Checkpoint | None:
    """Return the checkpoint to resume from, or None before the first checkpoint. Raises RunError.

    ``last`` is the newest complete checkpoint; the pointer may be outdated after a kill.
    """
    task.check_run(run)
    folder = run.checkpoints_folder
    with suppress(OutputError):
        clear(folder / "*")
    steps = saved_steps(folder)
    if name == "last":
        if not steps:
            return None
        complete = [step for step in steps if (folder / step_name(step) / MANIFEST).is_file()]
        if complete:
            name = step_name(complete[-1])
    path = run.checkpoint(name)
    if step_of(path.name) is None:
        raise RunError(f"{path} contains weights only; resume from last, best or a step")
    checkpoint = read_checkpoint(path, ["model", MOMENTS])
    run.check_model(path)
    state = TrainingState.from_json(checkpoint.state, path)
    return Checkpoint(checkpoint.tensors, state.model_dump())


def continue_run(run: Run, recipe: Recipe, environment: dict[str, Any], checkpoint: Checkpoint | None) -> None:
    """Prepare a run's folder for training with a recipe from a checkpoint; all other checks must have passed.

    Later checkpoints and the average are removed, since training writes them again. The run's environment gets a record
    of the resumption. Raises RunError and OutputError.
    """
    record = run.environment()
    if record.get("teacher_sha256") not in (None, environment.get("teacher_sha256")):
        raise RunError(f"the teacher of {run.folder} has other weights now; train a new student")
    resumed = describe_environment(recipe) | environment
    record["recipe"] = resumed.pop("recipe")
    record.setdefault("resumed", []).append(resumed)
    folder = run.checkpoints_folder
    clear_leftovers(run)
    with writing(folder):
        if (folder / AVERAGE).is_dir():
            discard(folder / AVERAGE, MANIFEST, MODEL)
    if checkpoint is not None:
        step = checkpoint.state["step"]
        best = checkpoint.state.get("best_step")
        prune(folder, {saved for saved in saved_steps(folder) if saved <= step})
        run.set_pointer("last", step)
        run.set_pointer("best", best if best in whole_steps(folder) else None)
    unmodified = record.get("unmodified")  # the recipe file's values of keys that options changed
    if isinstance(unmodified, dict):
        for key, (before, _) in differences(run.recipe, recipe).items():
            unmodified.setdefault(key, before)
    write_json(run.folder / ENVIRONMENT, record)
    if recipe != run.recipe:  # otherwise the user's comments stay
        write_recipe(run.folder, recipe)


def complete_run(run: Run, recipe: Recipe, step: int) -> bool:
    """Repair a run without remaining steps after a kill; return whether its average may be computed.

    It may if the recipe gives the results of the run's, and `step` is the newest checkpoint. Raises OutputError.
    """
    clear_leftovers(run)
    update_pointers(run, run.recipe.training)
    same_recipe = differences(run.recipe, recipe).keys() <= keys_changing(recipe, NOTHING)
    return same_recipe and saved_steps(run.checkpoints_folder)[-1:] == [step]
