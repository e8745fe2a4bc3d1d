"""Continuing a run: which one, with which recipe, from which checkpoint."""

from pathlib import Path
from typing import Any

from phmctl.checkpoints import Checkpoint, prune, read_checkpoint, recover, saved_steps, step_name, step_of
from phmctl.errors import RecipeError, RunError
from phmctl.files import write_atomic, write_json, writing
from phmctl.recipe.loading import differences, dump_recipe
from phmctl.recipe.schema import Recipe
from phmctl.runs import ENVIRONMENT, RECIPE, Run, describe_environment
from phmctl.training.averaging import discard_average
from phmctl.training.state import TrainingState

# These may differ from the run's recipe: they change where and how long it trains, not what a step computes.
_MAY_DIFFER = {"training.device", "training.threads", "training.log_every", "training.tensorboard", "description"}


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
    """Return the checkpoint to continue from; None when the run was stopped before its first. Nothing is changed.

    Raises:
        RunError: the checkpoint is damaged, or has no state to continue from (``average``).
    """
    recover(run.checkpoints_folder)
    if name == "last" and not saved_steps(run.checkpoints_folder):
        return None
    folder = run.checkpoint(name)
    if step_of(folder.name) is None:
        raise RunError(f"{folder} has weights only; resume from last, best or a step")
    return read_checkpoint(folder, ["model", "optimizer"])  # earlier versions wrote `random` too


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
    if checkpoint is not None:
        _discard_later(run, checkpoint)
    discard_average(run.checkpoints_folder)
    write_json(run.folder / ENVIRONMENT, noted)
    write_atomic(run.folder / RECIPE, dump_recipe(recipe))


def stands_at_its_end(run: Run, recipe: Recipe, checkpoint: Checkpoint | None) -> bool:
    """Return whether the checkpoint is the run's newest and the recipe's steps are the run's: there it may finish."""
    newest = saved_steps(run.checkpoints_folder)[-1:]
    same = recipe.training.steps == run.recipe.training.steps
    return checkpoint is not None and newest == [checkpoint.state["step"]] and same


def _discard_later(run: Run, checkpoint: Checkpoint) -> None:
    """Make the folder look as it did when the checkpoint was written."""
    state = TrainingState.from_json(checkpoint.state)
    saved = saved_steps(run.checkpoints_folder)
    with writing(run.checkpoints_folder):
        run.point("last", state.step)
        has_best = state.best_step is not None and (run.checkpoints_folder / step_name(state.best_step)).is_dir()
        run.point("best", state.best_step if has_best else None)
        prune(run.checkpoints_folder, {step for step in saved if step <= state.step})
