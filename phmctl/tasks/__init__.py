"""The tasks, by name. A new task is a :class:`~phmctl.tasks.base.TaskSpec` in :data:`TASKS`."""

from __future__ import annotations  # torch is imported for type checking only

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from phmctl.answering.opening import Source
from phmctl.errors import UserError
from phmctl.recipe.schema import Recipe
from phmctl.runs import AUTO
from phmctl.runs.results import check_scorable
from phmctl.tasks.base import Answering, Report, TaskSpec, Trains
from phmctl.tasks.classification import CLASSIFICATION, PROBING
from phmctl.tasks.rule import RULE
from phmctl.tasks.translation import TRANSLATION

if TYPE_CHECKING:
    from phmctl.answering.classifier import Classifier
    from phmctl.answering.translator import Translator

# By the value of `task` in recipes and cards. The recipe's class is in `recipe.schema.RECIPES`.
TASKS: dict[str, TaskSpec] = {spec.name: spec for spec in (TRANSLATION, CLASSIFICATION, PROBING, RULE)}


def task_of(recipe: Recipe) -> TaskSpec:
    return TASKS[recipe.task]


def trains(recipe: Recipe, command: str = "train") -> Trains:
    """Return how a recipe is trained and scored. Raises UserError, which names the command, if the task has neither."""
    spec = task_of(recipe)
    if spec.trains is None:
        raise spec.lacks(command)
    return spec.trains


def answers(recipe: Recipe, command: str = "decode") -> Answering:
    """Return how a recipe's models answer lines. Raises UserError, which names the command, if they do not."""
    spec = task_of(recipe)
    if spec.answers is None:
        raise spec.lacks(command)
    return spec.answers


def load_model(
    run: Source,
    checkpoint: str = AUTO,
    device: str = "auto",
    *,
    threads: int = 0,
    **options: object,
) -> Translator | Classifier:
    """Load the model of a run or an export.

    Args:
        threads: CPU threads of an engine other than torch. 0 is the engine's default.
        options: options of the task. None means not set.

    Raises:
        RunError: the checkpoint is missing, or a file is missing or damaged.
        UserError: the task does not answer, or the task or the engine lacks an option.
        RecipeError: this machine lacks the device.
        MissingExtraError: the engine is not installed.
    """
    answering = answers(run.recipe)
    task_options = set_options(run.recipe.task, answering.options, options)
    return answering.load(run, checkpoint, device, threads=threads, **task_options)


def evaluate(
    run: Source, split: str = "test", checkpoint: str = AUTO, device: str = "auto", **options: object
) -> Report:
    """Score a run or an export on a split and write the scores into the folder. Options of None are not set.

    Raises:
        RunError: something is missing or damaged.
        UserError: the task or the engine lacks an option.
        OutputError: the scores cannot be written.
    """
    scoring = trains(run.recipe, "eval")
    task_options = set_options(run.recipe.task, scoring.options, options)
    other_text = [name for name in ("source", "table") if name in task_options]
    if split != "test" and other_text:
        raise UserError(f"split={split} scores the run's own text, {other_text[0]} other text: leave one out")
    if "table" not in task_options:  # the scores of a table are not stored
        check_scorable(run)
    return scoring.evaluate(run, split, checkpoint, device, **task_options)


def set_options(task: str, known: Sequence[str], options: Mapping[str, object]) -> dict[str, object]:
    """Return the options that are not None. Raises UserError for options that the task does not have."""
    values = {name: value for name, value in options.items() if value is not None}
    unknown = [name for name in values if name not in known]
    if unknown:
        valid = ", ".join(known) or "no options"
        raise UserError(f"{', '.join(unknown)}: task {task!r} does not have this option; it has {valid}")
    return values


def requested_splits(runs: Sequence[Source], split: str) -> list[str]:
    """Return the splits to score for the ``--split`` option.

    ``all`` selects every test set of the runs. So does ``test`` if no run has a test set of that name.
    """
    tests = sorted({name for run in runs for name in run.splits() if name.partition("_")[0] == "test"})
    if split == "all" or (split == "test" and "test" not in tests):
        return tests or ["test"]
    return [split]
