"""Continuing a run: which one, with which recipe, from which checkpoint."""

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.checkpoints import (
    MANIFEST,
    Checkpoint,
    prune,
    read_checkpoint,
    saved_steps,
    step_name,
    step_of,
    tidy,
    whole_steps,
)
from phmctl.errors import RecipeError, RunError
from phmctl.files import write_atomic, write_json
from phmctl.recipe.loading import differences, dump_recipe
from phmctl.recipe.schema import Recipe
from phmctl.runs import ENVIRONMENT, RECIPE, Run, describe_environment
from phmctl.training.averaging import discard_average
from phmctl.training.saving import clear_leftovers, newest_state
from phmctl.training.state import TrainingState

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

# These may differ from the run's recipe: they change where and how long it trains, not what a step computes.
_MAY_DIFFER = {
    *(f"training.{key}" for key in ("device", "threads", "log_every", "tensorboard", "sharding", "timeout")),
    "description",
}


def run_to_resume(root: Path, recipe: Recipe, run: Path | None) -> Run:
    """Return the run that ``--resume`` means: the one given, or the newest of this recipe and variant.

    Raises:
        RunError: there is none, or it is not complete.
        RecipeError: its recipe differs in what a step computes; the message lists each key with both values.
    """
    found = Run.open(run) if run is not None else Run.latest(root, recipe)
    if found is None:
        where = root / recipe.name / recipe.variant
        raise RunError(f"nothing to resume: no run in {where}; leave --resume out to start one")
    check_same(found, recipe)
    return found


def run_of_job(root: Path, recipe: Recipe, job: str | None) -> Run | None:
    """Return the newest run of a recipe that a job of ``torchrun`` began, with a checkpoint or not; None if none."""
    parent = root / recipe.name / recipe.variant
    for folder in sorted(parent.glob("v*"), reverse=True) if job else ():
        run = Run.open(folder)
        if run.environment().get("job") == job:
            return run
    return None


def check_same(run: Run, recipe: Recipe) -> None:
    """Refuse a recipe that would not continue the run's training.

    ``training.steps`` may differ too, unless the schedule is linear, which ends there.

    Raises:
        RecipeError: keys differ.
    """
    allowed = _MAY_DIFFER if recipe.training.schedule == "linear" else _MAY_DIFFER | {"training.steps"}
    wrong = {key: pair for key, pair in differences(run.recipe, recipe).items() if key not in allowed}
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
    checkpoint = read_checkpoint(folder, ["model", "optimizer"])  # earlier versions wrote `random` too
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
    clear_leftovers(run)
    discard_average(run.checkpoints_folder)
    if checkpoint is not None:
        _discard_later(run, checkpoint)
    write_json(run.folder / ENVIRONMENT, noted)
    write_atomic(run.folder / RECIPE, dump_recipe(recipe))


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
