"""Which tasks there are. A task is imported when it is first asked for."""

import importlib
from typing import Any

from phmctl.data.catalog import card_names, load_card
from phmctl.errors import RecipeError, nearest
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import Recipe
from phmctl.tasks.base import TaskKind

# A task's name in recipes and cards, and where its :class:`TaskKind` stands. Its recipe: ``recipe.schema.RECIPES``.
TASKS: dict[str, str] = {
    "translation": "phmctl.tasks.translation_kind:KIND",
    "classification": "phmctl.tasks.classification_kind:KIND",
}


def task_kind(name: str) -> TaskKind[Any]:
    """Return the kind of a task.

    Raises:
        RecipeError: there is none of this name.
    """
    if name not in TASKS:
        raise RecipeError(f"no task {name!r}{nearest(name, TASKS)}; there are {', '.join(TASKS)}")
    module, _, attribute = TASKS[name].partition(":")
    kind: TaskKind[Any] = getattr(importlib.import_module(module), attribute)
    return kind


def kind_of(recipe: Recipe) -> TaskKind[Any]:
    """Return the kind of a recipe's task."""
    return task_kind(recipe.task)


def kind_for_corpus(name: str, recipe: str | None = None) -> TaskKind[Any]:
    """Return the kind of task that a corpus is prepared for: a recipe's, else its card's, else translation.

    Raises:
        RecipeError, DataError: there is no such recipe, or the card is not valid.
    """
    if recipe is not None:
        return kind_of(load_recipe(recipe))
    is_card = name in card_names() or name.endswith((".yaml", ".yml"))
    return task_kind(load_card(name).task if is_card else "translation")
