"""Continuing a run: which one, with which recipe, from which checkpoint."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.checkpoints import (
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
from phmctl.files import write_json
from phmctl.recipe.loading import differences
from phmctl.recipe.schema import Recipe
from phmctl.recipe.sections import CHOICE, NOTHING, keys_changing
from phmctl.runs import ENVIRONMENT, RECIPE, Run, describe_environment, write_recipe
from phmctl.training.averaging import discard_average
from phmctl.training.saving import clear_leftovers, newest_state
from phmctl.training.state import TrainingState

if TYPE_CHECKING:
    from phmctl.tasks.base import Task


def run_to_resume(root: Path, recipe: Recipe) -> Run:
    """Return the run that ``--resume`` means: the newest one that the recipe would continue, with a checkpoint or not.

    Raises:
        RunError: there is none of this variant and seed, or it is not complete.
        RecipeError: there is, and it differs in what a step computes; the message lists each key with both values.
    """
    found = newest_like(root, recipe)
    if found is not None:
        return found
    seeds: dict[int, Run] = {}
    for run in Run.versions(root, recipe):
        seeds.setdefault(run.recipe.training.seed, run)
    if recipe.training.seed in seeds:
        check_same(seeds[recipe.training.seed], recipe)
    what = f"no run with seed {recipe.training.seed}, only with {', '.join(map(str, seeds))}," if seeds else "no run"
    where = root / recipe.name / recipe.variant
    raise RunError(f"nothing to resume: {what} in {where}; leave --resume out to start one")


def newest_like(root: Path, recipe: Recipe) -> Run | None:
    """Return the newest run that a recipe would continue: it differs in nothing that a step computes. None if none."""
    return next((run for run in Run.versions(root, recipe) if not forbidden(run.recipe, recipe)), None)


def run_of_job(root: Path, recipe: Recipe, job: str | None) -> Run | None:
    """Return the newest run of a recipe that a job of ``torchrun`` began, with a checkpoint or not; None if none."""
    runs = Run.versions(root, recipe) if job else ()
    return next((run for run in runs if run.environment().get("job") == job), None)


def forbidden(trained: Recipe, recipe: Recipe) -> dict[str, tuple[Any, Any]]:
    """Return the keys, with both values, for which a recipe would not continue a training with another.

    ``training.steps`` may differ too, unless the schedule is linear, which ends there.
    """
    allowed = keys_changing(recipe, CHOICE, NOTHING)
    allowed |= set() if recipe.training.schedule == "linear" else {"training.steps"}
    return {key: pair for key, pair in differences(trained, recipe).items() if key not in allowed}


def check_same(run: Run, recipe: Recipe) -> None:
    """Refuse a recipe that would not continue the run's training.

    Raises:
        RecipeError: keys differ in what a step computes.
    """
    wrong = forbidden(run.recipe, recipe)
    if wrong:
        lines = [f"  {key}: {old!r} in the run, {new!r} now" for key, (old, new) in wrong.items()]
        raise RecipeError(
            f"the recipe differs from the one that {run.folder} was trained with:\n"
            + "\n".join(lines)
            + f"\nset these as they were (the run's own recipe: {run.folder / RECIPE}), "
            "or leave --resume out to start a new run"
        )


def read_to_resume(run: Run, name: str = "last") -> Checkpoint | None:
    """Return the checkpoint to continue from; None when the run was stopped before its first. No checkpoint is changed.

    ``last`` is the newest that is complete and ``best`` the one which that calls so, whatever the pointers say: a kill
    may have come before they were moved.

    Raises:
        RunError: the checkpoint is damaged, or has no state to continue from (``average``).
    """
    with suppress(OSError):
        tidy(run.checkpoints_folder)
    folder = _find(run, name)
    if folder is None:
        return None
    if step_of(folder.name) is None:
        raise RunError(f"{folder} has weights only; resume from last, best or a step")
    if not has_group(folder, MOMENTS):
        names = [
            name for name in map(step_name, whole_steps(folder.parent)) if has_group(folder.parent / name, MOMENTS)
        ]
        raise RunError(
            f"{folder} is kept for the average, without the optimiser's moments (training.keep); "
            f"resume from {' or '.join(names)}"
        )
    checkpoint = read_checkpoint(folder, ["model", MOMENTS])  # earlier versions wrote `random` too
    state = TrainingState.from_json(checkpoint.state, folder)
    if step_name(state.step) != folder.name:
        raise RunError(f"{folder} cannot be continued from: its step is {state.step} in state.json")
    return checkpoint


def _find(run: Run, name: str) -> Path | None:
    folder = run.checkpoints_folder
    complete = [step for step in saved_steps(folder) if (folder / step_name(step) / MANIFEST).is_file()]
    if name == "last" and complete:
        return folder / step_name(complete[-1])
    if name == "last" and not saved_steps(folder):
        return None
    newest = newest_state(folder) if name == "best" else None
    if newest is not None and newest.best_step in complete:
        return folder / step_name(newest.best_step)
    return run.checkpoint(name)


def check_position(task: "Task", checkpoint: Checkpoint | None) -> None:
    """Refuse a state whose place in the epoch no epoch of the task has.

    Raises:
        RunError: there are fewer batches.
    """
    state = TrainingState() if checkpoint is None else TrainingState.from_json(checkpoint.state)
    batches = len(task.plan(state.epoch)) if state.position else 0
    if state.position > batches:
        raise RunError(
            f"the checkpoint cannot be continued from: its position is {state.position:,} in state.json, and epoch "
            f"{state.epoch:,} has {batches:,} batches; resume from another one"
        )


def take_over(run: Run, recipe: Recipe, environment: dict[str, Any], checkpoint: Checkpoint | None) -> None:
    """Make the run one that stands at the checkpoint and is trained with this recipe.

    Later checkpoints are removed, since training writes them anew, and so is an average, which was made of another end.
    The run's environment notes that it was resumed, where and when. Call it when nothing can be refused any more.

    Raises:
        OutputError: the run's folder cannot be written.
        RunError: its environment is damaged.
    """
    noted = run.environment()
    noted.setdefault("resumed", []).append(describe_environment(recipe) | environment)
    _note_changes(noted, run.recipe, recipe)
    clear_leftovers(run)
    discard_average(run.checkpoints_folder)
    if checkpoint is not None:
        _discard_later(run, checkpoint)
    write_json(run.folder / ENVIRONMENT, noted)
    write_recipe(run.folder, recipe)


def amend_recipe(run: Run, recipe: Recipe) -> Run:
    """Give a run that is at its end what a recipe asks for otherwise: how many are kept, averaged, how it decodes.

    Raises:
        OutputError: the run's folder cannot be written.
    """
    if run.recipe != recipe:
        noted = run.environment()
        _note_changes(noted, run.recipe, recipe)
        write_json(run.folder / ENVIRONMENT, noted)
        write_recipe(run.folder, recipe)
    return Run(run.folder, recipe)


def _note_changes(noted: dict[str, Any], trained: Recipe, recipe: Recipe) -> None:
    """Note what the run was begun with, where a resumption changes it; what an option changed before keeps its note."""
    unmodified = noted.get("unmodified")
    if isinstance(unmodified, dict):
        for key, (before, _) in differences(trained, recipe).items():
            unmodified.setdefault(key, before)


def stands_at_its_end(run: Run, recipe: Recipe, checkpoint: Checkpoint | None) -> bool:
    """Return whether the checkpoint is the run's newest and the recipe's steps are the run's: there it may finish."""
    newest = saved_steps(run.checkpoints_folder)[-1:]
    same = recipe.training.steps == run.recipe.training.steps
    return checkpoint is not None and newest == [checkpoint.state["step"]] and same


def _discard_later(run: Run, checkpoint: Checkpoint) -> None:
    """Make the folder look as it did when the checkpoint was written. The newest goes first: a kill leaves no gap."""
    folder, step = run.checkpoints_folder, checkpoint.state["step"]
    for later in reversed(saved_steps(folder)):
        if later > step:
            prune(folder, {other for other in saved_steps(folder) if other < later})
    best = checkpoint.state.get("best_step")
    run.point("last", step)
    run.point("best", best if best in whole_steps(folder) else None)
