"""A recipe out of a text."""

from phmctl.errors import RecipeError
from phmctl.recipe.documents import parse_document
from phmctl.recipe.loading import _resolve
from phmctl.recipe.schema import Recipe


def parse_recipe(text: str, where: str = "r.yaml", overrides: tuple[str, ...] = ()) -> Recipe:
    return _resolve(parse_document(text, where, RecipeError), overrides)
