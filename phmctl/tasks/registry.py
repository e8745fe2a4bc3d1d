"""Which tasks there are. A task is imported when it is first asked for."""

import pkgutil
from collections.abc import Collection
from typing import Any

from phmctl.data.card import is_card, load_card
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import Recipe
from phmctl.tasks.base import TaskKind

# A task's name in recipes and cards, and where its :class:`TaskKind` stands. Its recipe: ``recipe.schema.RECIPES``.
TASKS: dict[str, str] = {
    "translation": "phmctl.tasks.translation.kind:KIND",
    "classification": "phmctl.tasks.classification.kind:KIND",
    "probing": "phmctl.probes:KIND",
    "rule": "phmctl.tasks.rule:KIND",
}


def task_kind(name: str) -> TaskKind[Any]:
    kind: TaskKind[Any] = pkgutil.resolve_name(TASKS[name])
    return kind


def kind_of(recipe: Recipe) -> TaskKind[Any]:
    return task_kind(recipe.task)


def kind_for_corpus(name: str, recipe: str | None = None, given: Collection[str] = ()) -> TaskKind[Any]:
    """Return the kind of task that a corpus is prepared for.

    It is the one whose own options are given; else the card's; else, where there is no such card, the recipe's.
    """
    for kind in map(task_kind, TASKS) if given else ():
        if set(given) & set(kind.corpus_options):
            return kind
    if recipe is not None and not is_card(name):
        return kind_of(load_recipe(recipe))
    return task_kind(load_card(name).task)
