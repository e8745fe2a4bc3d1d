"""Decoding settings other than the recipe's."""

from phmctl.errors import RecipeError
from phmctl.recipe.documents import change
from phmctl.recipe.schema import DecodingSection


def change_decoding(section: DecodingSection, **changes: float | str | None) -> DecodingSection:
    """Return the section with some keys changed; None leaves a key as it is. Raises RecipeError."""
    given = {key: value for key, value in changes.items() if value is not None}
    changed = change(section, given, RecipeError)
    # One setting has one name: what was computed in float32 is found again, whether it was asked for or not.
    return changed.model_copy(update={"precision": None}) if changed.precision == "float32" else changed
