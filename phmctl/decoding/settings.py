"""Decoding settings other than the recipe's."""

from pydantic import ValidationError

from phmctl.errors import RecipeError
from phmctl.recipe.schema import DecodingSection


def change_decoding(section: DecodingSection, **changes: float | None) -> DecodingSection:
    """Return the section with some keys changed; None leaves a key as it is.

    Raises:
        RecipeError: a value is out of range.
    """
    given = {key: value for key, value in changes.items() if value is not None}
    try:
        return DecodingSection.model_validate({**section.model_dump(), **given})
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0]).replace("_", "-")
        raise RecipeError(f"--{name} {first['input']}: {first['msg'][0].lower()}{first['msg'][1:]}") from error
