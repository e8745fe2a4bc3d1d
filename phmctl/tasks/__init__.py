"""The tasks, by name. A new task is a :class:`~phmctl.tasks.base.TaskSpec` in :data:`TASKS`."""

from collections.abc import Collection

from phmctl.data.card import is_card, load_card
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import Recipe
from phmctl.tasks.base import Answering, TaskSpec, Trains
from phmctl.tasks.classification import CLASSIFICATION, PROBING
from phmctl.tasks.rule import RULE
from phmctl.tasks.text import OwnText
from phmctl.tasks.translation import TRANSLATION

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


def text_of(name: str, recipe: str | None = None, options: Collection[str] = ()) -> OwnText:
    """Return the type of text that a corpus holds. Raises UserError if the task reads no prepared text.

    An option that only one type has decides. Otherwise the card does, or without a card the recipe.
    """
    specs = [spec for spec in TASKS.values() if spec.text and not set(options).isdisjoint(spec.text.own_options)]
    if specs:
        spec = specs[0]
    elif recipe is not None and not is_card(name):
        spec = task_of(load_recipe(recipe))
    else:
        spec = TASKS[load_card(name).task]
    if spec.text is None:
        raise spec.lacks("prepare-data")
    return spec.text
