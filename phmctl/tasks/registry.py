"""All tasks, by name. A new task is an entry of :data:`TASKS`."""

from collections.abc import Collection
from typing import Any

from phmctl.data.card import is_card, load_card
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import Recipe
from phmctl.tasks.base import AnsweringKind, TaskKind, TrainedKind
from phmctl.tasks.classification.kind import ClassificationKind
from phmctl.tasks.probing import ProbingKind
from phmctl.tasks.rule.kind import RuleKind
from phmctl.tasks.text import TextKind
from phmctl.tasks.translation.kind import TranslationKind

# By the value of `task` in recipes and cards; the recipe's class is in `recipe.schema.RECIPES`.
TASKS: dict[str, TaskKind[Any]] = {
    kind.name: kind for kind in (TranslationKind(), ClassificationKind(), ProbingKind(), RuleKind())
}


def kind_of(recipe: Recipe) -> TaskKind[Any]:
    return TASKS[recipe.task]


def trained_kind(recipe: Recipe, command: str = "train") -> TrainedKind[Any]:
    """Return the task of a recipe; raise UserError, which names the command, if it cannot be trained."""
    kind = kind_of(recipe)
    if not isinstance(kind, TrainedKind):
        raise kind.unsupported(command)
    return kind


def answering_kind(recipe: Recipe, command: str = "decode") -> AnsweringKind[Any]:
    """Return the task of a recipe; raise UserError, which names the command, if its models do not answer lines."""
    kind = kind_of(recipe)
    if not isinstance(kind, AnsweringKind):
        raise kind.unsupported(command)
    return kind


def text_kind(name: str, recipe: str | None = None, options: Collection[str] = ()) -> TextKind[Any]:
    """Return the task that a corpus is prepared for. Raises UserError if it reads no prepared text.

    An option that only one task has decides; then the card; without a card the recipe.
    """
    kinds = [kind for kind in TASKS.values() if not set(options).isdisjoint(kind.corpus_options)]
    if kinds:
        kind = kinds[0]
    elif recipe is not None and not is_card(name):
        kind = kind_of(load_recipe(recipe))
    else:
        kind = TASKS[load_card(name).task]
    if not isinstance(kind, TextKind):
        raise kind.unsupported("prepare-data")
    return kind
