"""What a training keeps on disk (its state, its checkpoints, their average), and how a run goes on from it.

``last`` and ``best`` say nothing that the checkpoints do not: the newest whole one, and the one that its state calls
the best. So they are derived, after every save and whenever a run is continued, and so is what may be pruned. A kill
anywhere leaves at worst pointers that are behind, and the next start moves them.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from phmctl.checkpoints import (
    AVERAGE,
    MANIFEST,
    MOMENTS,
    Checkpoint,
    prune,
    read_checkpoint,
    read_state,
    saved_steps,
    step_name,
    step_of,
    verify_checkpoint,
    whole_steps,
    write_checkpoint,
)
from phmctl.data.batches import ORDER
from phmctl.errors import OutputError, RecipeError, RunError
from phmctl.files import clear, discard, remove_abandoned, write_json, writing
from phmctl.recipe.loading import differences
from phmctl.recipe.models import CHOICE, NOTHING, keys_changing
from phmctl.recipe.schema import Recipe, TrainingSection
from phmctl.runs import RECIPE, Run
from phmctl.runs.find import ENVIRONMENT
from phmctl.runs.run import describe_environment, write_recipe
from phmctl.runs.summary import is_done

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

_Count = Annotated[int, Field(ge=0)]


class TrainingState(BaseModel):
    """Counters of a training. No clock time is among them: equal trainings have equal checkpoints."""

    model_config = ConfigDict(strict=True, extra="ignore")

    step: _Count = 0  # optimiser steps done
    epoch: _Count = 0  # of the next batch
    position: _Count = 0  # batches of that epoch already used
    validated: _Count = 0  # step of the newest validation
    best_score: float | None = None  # higher is better
    best_loss: float | None = None  # validation loss of the best one
    best_step: _Count | None = None
    stale: _Count = 0  # validations since the best one
    target_tokens: _Count = 0  # all that were trained on
    # since the newest log line
    window_loss: float = 0.0  # summed
    window_target_tokens: _Count = 0
    order: _Count = ORDER  # which way to order batches `position` counts in

    @classmethod
    def from_json(cls, values: dict[str, Any], where: Path) -> Self:
        """Return the state that ``model_dump`` described, of the checkpoint `where`; other keys are ignored.

        Raises:
            RunError: a counter is missing or of another kind, or batches came in another order.
        """
        try:
            state = cls.model_validate(values)
        except ValidationError as error:
            raise RunError(
                f"{where} cannot be continued from: state.json has another {error.errors()[0]['loc'][0]}"
            ) from None
        if values.get("order") != ORDER:
            raise RunError(f"{where} is of a version before 0.1.0: decode it, or train anew")
        return state

    def note_score(self, score: float, loss: float, least_score: float = -math.inf) -> bool:
        """Count a validation; return whether it is the best so far: by its score, by its loss where scores are equal.

        Scores below `least_score` count as equal. NaN is never the best.
        """
        self.validated = self.step
        best, least = self.best_score, math.inf if self.best_loss is None else self.best_loss
        improved = not math.isnan(score) and (
            best is None or (max(score, least_score), -loss) > (max(best, least_score), -least)
        )
        self.stale = 0 if improved else self.stale + 1
        if improved:
            self.best_score, self.best_loss, self.best_step = score, loss, self.step
        return improved


def scheduled_steps(folder: Path, save_every: int, final: int | None) -> list[int]:
    """Return the whole steps that belong to the interval (and the final one), ascending.

    Those that only an interruption or a new best wrote are not among them, so what is kept and averaged does not
    depend on interruptions.
    """
    return [step for step in whole_steps(folder) if step % save_every == 0 or step == final]


def derive(run: Run, settings: TrainingSection) -> None:
    """Let ``last`` and ``best`` name what they must, and remove what is not kept. Raises OutputError."""
    folder = run.checkpoints_folder
    whole = whole_steps(folder)
    if not whole:
        return
    newest = folder / step_name(whole[-1])
    state = TrainingState.from_json(read_state(newest), newest)
    best = state.best_step if state.best_step in whole else None
    run.set_pointer("last", state.step)
    run.set_pointer("best", best)
    final = state.step if is_done(state.step, state.stale, settings.steps, settings.patience) else None
    scheduled = scheduled_steps(folder, settings.save_every, final)
    newest_kept = scheduled[-max(settings.keep, settings.average) :]
    prune(folder, {state.step, *newest_kept, *([] if best is None else [best])})


def clear_leftovers(run: Run) -> None:
    """Remove or put back what killed processes left in a run; for the process that trains it. Raises OutputError."""
    with writing(run.folder):
        clear(run.checkpoints_folder / "*")
        clear(run.folder / "*")
        remove_abandoned(run.results_folder / "*")


# ------------------------------------------------------------------- the average (Vaswani et al. 2017, §6.1)


def average_checkpoints(folder: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """Average the models of some steps, ascending, write the checkpoint ``average`` and return its tensors.

    Sums are float64; tensors of integers are those of the newest step. Raises RunError and OutputError.
    """
    sums: dict[str, Tensor] = {}
    newest: dict[str, Tensor] = {}
    for step in steps:
        newest = read_checkpoint(folder / step_name(step), ["model"]).tensors["model"]
        for name, tensor in newest.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor if name in sums else tensor.to(torch.float64)
    means = {name: (sums[name] / len(steps)).to(t.dtype) if name in sums else t for name, t in newest.items()}
    write_checkpoint(folder / AVERAGE, {"model": means}, {"steps": list(steps)})
    return means


def averaged_steps(folder: Path) -> list[int]:
    """Return the steps that ``average`` was made of, or an empty list where it is missing or damaged."""
    with suppress(RunError):
        verify_checkpoint(folder / AVERAGE, ["model"])
        return list(read_state(folder / AVERAGE)["steps"])
    return []


# ------------------------------------------------- a run that goes on: which, with which recipe, from which checkpoint


def run_to_resume(root: Path, recipe: Recipe, *, needed: bool) -> Run | None:
    """Return the newest run that a recipe would continue, with a checkpoint or not: no key differs that changes a step.

    None if there is none; where one is `needed`, RecipeError: the newest differs, or RunError: none is of this variant.
    """
    newest = next((run for run in Run.versions(root, recipe) if not forbidden(run, recipe)), None)
    if newest is None and needed:
        for run in Run.versions(root, recipe):
            check_same(run, recipe)
        where = root / recipe.name / recipe.variant
        raise RunError(f"nothing to resume: no run in {where}; leave --resume out to start one")
    return newest


def data_of(run: Run) -> Path | None:
    """Return the data folder that a run was trained with last, if it is here."""
    noted = run.environment()
    starts = [noted, *(each for each in noted.get("resumed", []) if isinstance(each, dict))]
    folders = [each["data"] for each in reversed(starts) if isinstance(each.get("data"), str)]
    return next((Path(folder) for folder in folders if Path(folder).is_dir()), None)


def forbidden(run: Run, recipe: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the keys, with both values, for which a recipe would not continue a run's training.

    ``training.steps`` may differ too, unless the schedule is linear, which ends there; minutes may not.
    """
    allowed = keys_changing(recipe, CHOICE, NOTHING)
    allowed |= set() if recipe.training.schedule == "linear" else {"training.steps"}
    trained = run.requested_recipe() if recipe.training.minutes else run.recipe
    return {key: pair for key, pair in differences(trained, recipe).items() if key not in allowed}


def check_same(run: Run, recipe: Recipe) -> None:
    """Refuse (RecipeError) a recipe that would not continue the run's training."""
    wrong = forbidden(run, recipe)
    if wrong:
        lines = [f"  {key}: {old!r} in the run, {new!r} now" for key, (old, new) in wrong.items()]
        raise RecipeError(
            f"the recipe differs from the one that {run.folder} was trained with:\n"
            + "\n".join(lines)
            + f"\nset these as they were (the run's own recipe: {run.folder / RECIPE}), "
            "or leave --resume out to start a new run"
        )


def read_to_resume(task: "Task", run: Run, name: str = "last") -> Checkpoint | None:
    """Return the checkpoint to continue from; None when the run was stopped before its first. No checkpoint is changed.

    ``last`` is the newest that is complete, whatever the pointer says: a kill may have come before it was moved.
    RunError: the run is of other data, or the checkpoint cannot be continued.
    """
    task.check_run(run)
    with suppress(OutputError):
        clear(run.checkpoints_folder / "*")
    steps = saved_steps(run.checkpoints_folder)
    if name == "last" and not steps:
        return None
    complete = [step for step in steps if (run.checkpoints_folder / step_name(step) / MANIFEST).is_file()]
    folder = run.checkpoint(step_name(complete[-1]) if name == "last" and complete else name)
    if step_of(folder.name) is None:
        raise RunError(f"{folder} has weights only; resume from last, best or a step")
    checkpoint = read_checkpoint(folder, ["model", MOMENTS])
    return Checkpoint(checkpoint.tensors, TrainingState.from_json(checkpoint.state, folder).model_dump())


def continue_at(run: Run, recipe: Recipe, environment: dict[str, Any], checkpoint: Checkpoint | None) -> None:
    """Make the run one that ends at the checkpoint and is trained with this recipe. Nothing may be refused after it.

    Later checkpoints are removed, since training writes them anew, and so is an average. The run's environment notes
    that it was resumed, where and when. Raises OutputError; RunError where the environment is damaged, or a student's
    teacher has been trained on.
    """
    noted = run.environment()
    if noted.get("teacher_sha256") not in (None, environment.get("teacher_sha256")):
        raise RunError(f"the teacher of {run.folder} has other weights by now; train a new student")
    noted.setdefault("resumed", []).append(describe_environment(recipe) | environment)
    folder = run.checkpoints_folder
    clear_leftovers(run)
    with writing(folder):
        if (folder / AVERAGE).is_dir():  # of another end
            discard(folder / AVERAGE)
    if checkpoint is not None:  # the folder becomes what it was when the checkpoint was written
        step, best = checkpoint.state["step"], checkpoint.state.get("best_step")
        prune(folder, {other for other in saved_steps(folder) if other <= step})
        run.set_pointer("last", step)
        run.set_pointer("best", best if best in whole_steps(folder) else None)
    unmodified = noted.get("unmodified")  # what the run was begun with, where an option changes it
    if isinstance(unmodified, dict):
        for key, (before, _) in differences(run.recipe, recipe).items():
            unmodified.setdefault(key, before)
    write_json(run.folder / ENVIRONMENT, noted)
    write_recipe(run.folder, recipe)


def finish(run: Run, recipe: Recipe, step: int) -> bool:
    """Finish what a kill may have left undone in a run that has no step to go; return whether its average may be too.

    Another recipe than the run's, or an earlier step, changes nothing. Raises OutputError.
    """
    clear_leftovers(run)
    derive(run, run.recipe.training)
    same = differences(run.recipe, recipe).keys() <= keys_changing(recipe, NOTHING)
    return saved_steps(run.checkpoints_folder)[-1:] == [step] and same
