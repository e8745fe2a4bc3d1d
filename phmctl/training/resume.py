"""Continuing a run: which one, with which recipe, from which checkpoint."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.checkpoints import (
    AVERAGE,
    MANIFEST,
    MOMENTS,
    Checkpoint,
    has_group,
    prune,
    read_checkpoint,
    saved_steps,
    step_name,
    step_of,
    tidy,
    whole_steps,
)
from phmctl.errors import RecipeError, RunError
from phmctl.files import discard, write_json, writing
from phmctl.recipe.loading import differences
from phmctl.recipe.models import CHOICE, NOTHING, keys_changing
from phmctl.recipe.schema import Recipe
from phmctl.runs import RECIPE, Run
from phmctl.runs.find import ENVIRONMENT
from phmctl.runs.run import describe_environment, write_recipe
from phmctl.training.saving import TrainingState, clear_leftovers, derive

if TYPE_CHECKING:
    from phmctl.tasks.base import Task


def run_to_resume(root: Path, recipe: Recipe) -> Run:
    """Return the run that ``--resume`` means: the newest one that the recipe would continue, with a checkpoint or not.

    RunError: there is none of this variant and seed. RecipeError: there is, and it differs in what a step computes.
    """
    newest = newest_like(root, recipe)
    if newest is not None:
        return newest
    others = {run.recipe.training.seed: run for run in reversed([*Run.versions(root, recipe)])}
    if recipe.training.seed in others:
        check_same(others[recipe.training.seed], recipe)
    what = f"only runs with seed {', '.join(map(str, sorted(others)))}" if others else "no run"
    where = root / recipe.name / recipe.variant
    raise RunError(f"nothing to resume: {what} in {where}; leave --resume out to start one")


def newest_like(root: Path, recipe: Recipe) -> Run | None:
    """Return the newest run that a recipe would continue: it differs in nothing that a step computes. None if none."""
    return next((run for run in Run.versions(root, recipe) if not forbidden(run.recipe, recipe)), None)


def run_of_job(root: Path, recipe: Recipe, job: str | None) -> Run | None:
    """Return the newest run of a recipe that a job of ``torchrun`` began, with a checkpoint or not; None if none."""
    runs = Run.versions(root, recipe) if job else ()
    return next((run for run in runs if run.environment().get("job") == job), None)


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
    with suppress(OSError):
        tidy(run.checkpoints_folder)
    steps = saved_steps(run.checkpoints_folder)
    complete = [step for step in steps if (run.checkpoints_folder / step_name(step) / MANIFEST).is_file()]
    if name == "last" and not steps:
        return None
    folder = run.checkpoint(step_name(complete[-1]) if name == "last" and complete else name)
    if step_of(folder.name) is None:
        raise RunError(f"{folder} has weights only; resume from last, best or a step")
    if not has_group(folder, MOMENTS):
        whole = [folder.parent / step_name(step) for step in whole_steps(folder.parent)]
        names = [other.name for other in whole if has_group(other, MOMENTS)]
        raise RunError(
            f"{folder} is kept for the average, without the optimiser's moments (training.keep); "
            f"resume from {' or '.join(names)}"
        )
    checkpoint = read_checkpoint(folder, ["model", MOMENTS])
    state = TrainingState.from_json(checkpoint.state, folder)
    if step_name(state.step) != folder.name:
        raise RunError(f"{folder} cannot be continued from: its step is {state.step} in state.json")
    batches = len(task.plan(state.epoch)) if state.position else 0
    if state.position > batches:
        raise RunError(
            f"{folder} cannot be continued from: its position is {state.position:,} in state.json, and epoch "
            f"{state.epoch:,} has {batches:,} batches; resume from another one"
        )
    return Checkpoint(checkpoint.tensors, state.model_dump())


def is_at_end(run: Run, recipe: Recipe, step: int) -> bool:
    """Return whether a step is the run's newest and the recipe's steps are the run's: there it may finish."""
    return saved_steps(run.checkpoints_folder)[-1:] == [step] and recipe.training.steps == run.recipe.training.steps


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
    _change_recipe(run, recipe, noted)


def finish(run: Run, recipe: Recipe, step: int) -> None:
    """Finish what a kill may have left undone in a run that has no step to go; keep what the recipe asks for now."""
    clear_leftovers(run)
    amended = is_at_end(run, recipe, step) and run.recipe != recipe
    if amended:
        _change_recipe(run, recipe, run.environment())
    derive(run, (recipe if amended else run.recipe).training)


def _change_recipe(run: Run, recipe: Recipe, noted: dict[str, Any]) -> None:
    """Write the environment and the recipe; what the run was begun with is noted where an option changes it."""
    unmodified = noted.get("unmodified")
    if isinstance(unmodified, dict):
        for key, (before, _) in differences(run.recipe, recipe).items():
            unmodified.setdefault(key, before)
    write_json(run.folder / ENVIRONMENT, noted)
    write_recipe(run.folder, recipe)
