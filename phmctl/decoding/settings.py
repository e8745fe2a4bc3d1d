"""Decoding settings other than the recipe's."""

from phmctl.errors import RecipeError
from phmctl.recipe.documents import change
from phmctl.recipe.schema import DecodingSection


def change_decoding(section: DecodingSection, **changes: float | str | None) -> DecodingSection:
    """Return the section with some keys changed; None leaves a key as it is.

    Raises:
        RecipeError: a value is out of range.
    """
    given = {key: value for key, value in changes.items() if value is not None}
    return change(section, given, RecipeError)
