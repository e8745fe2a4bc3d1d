"""Continuing a run: which one, with which recipe, from which checkpoint."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.checkpoints import (
    AVERAGE,
    MANIFEST,
    MOMENTS,
    Checkpoint,
    prune,
    read_checkpoint,
    saved_steps,
    step_name,
    step_of,
    whole_steps,
)
from phmctl.errors import OutputError, RecipeError, RunError
from phmctl.files import clear, discard, write_json, writing
from phmctl.recipe.loading import differences
from phmctl.recipe.models import CHOICE, NOTHING, keys_changing
from phmctl.recipe.schema import Recipe
from phmctl.runs import RECIPE, Run
from phmctl.runs.find import ENVIRONMENT
from phmctl.runs.run import describe_environment, write_recipe
from phmctl.training.saving import TrainingState, clear_leftovers, derive

if TYPE_CHECKING:
    from phmctl.tasks.base import Task


def run_to_resume(root: Path, recipe: Recipe, *, needed: bool) -> Run | None:
    """Return the newest run that a recipe would continue, with a checkpoint or not: no key differs that changes a step.

    None if there is none; where one is `needed`, RecipeError: the newest differs, or RunError: none is of this variant.
    """
    newest = next((run for run in Run.versions(root, recipe) if not forbidden(run.recipe, recipe)), None)
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


def forbidden(trained: Recipe, recipe: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the keys, with both values, for which a recipe would not continue a training with another.

    ``training.steps`` may differ too, unless the schedule is linear, which ends there; minutes are the run's steps.
    """
    allowed = keys_changing(recipe, CHOICE, NOTHING)
    allowed |= set() if recipe.training.schedule == "linear" else {"training.steps"}
    allowed |= {"training.steps", "training.minutes"} if recipe.training.minutes else set()
    return {key: pair for key, pair in differences(trained, recipe).items() if key not in allowed}


def check_same(run: Run, recipe: Recipe) -> None:
    """Refuse (RecipeError) a recipe that would not continue the run's training."""
    wrong = forbidden(run.recipe, recipe)
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
    that it was resumed, where and when. Raises OutputError; RunError where the environment is damaged.
    """
    noted = run.environment()
    noted.setdefault("resumed", []).append(describe_environment(recipe) | environment)
    folder = run.checkpoints_folder
    clear_leftovers(run)
    with writing(folder):
        if (folder / AVERAGE).is_dir():  # of another end
            discard(folder / AVERAGE)
    if checkpoint is not None:  # the folder becomes what it was when the checkpoint was written
        step, best = checkpoint.state["step"], checkpoint.state.get("best_step")
        prune(folder, {other for other in saved_steps(folder) if other <= step})
        run.point("last", step)
        run.point("best", best if best in whole_steps(folder) else None)
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
    return saved_steps(run.checkpoints_folder)[-1:] == [step] and recipe == run.recipe
