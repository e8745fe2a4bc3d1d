"""Parse a recipe from a text, whose file name is ``r.yaml`` in errors."""

from collections.abc import Sequence

from phmctl.errors import RecipeError
from phmctl.recipe.documents import parse_document
from phmctl.recipe.loading import Override, _resolve
from phmctl.recipe.schema import Recipe


def parse_recipe(text: str, overrides: Sequence[str | Override] = ()) -> Recipe:
    return _resolve(parse_document(text, "r.yaml", RecipeError), overrides)
