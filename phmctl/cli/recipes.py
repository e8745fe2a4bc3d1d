"""``phmctl recipes``: the shipped recipes."""

from typing import Annotated

import typer

from phmctl.cli.options import Json, complete_recipe


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(metavar="RECIPE", help="Recipe to print, with its comments.", autocompletion=complete_recipe),
    ] = None,
    json: Json = False,
) -> None:
    """List the shipped recipes, or print one with its comments."""
    from phmctl.console import emit, emit_json, print_table
    from phmctl.recipe.listing import describe_recipe, list_recipes

    if name is not None:
        described = describe_recipe(name)
        if json:
            emit_json(described)
        else:
            emit(described["text"])
        return
    found = list_recipes()
    if json:
        emit_json(found)
        return
    rows = [(recipe["name"], recipe["task"], recipe["description"]) for recipe in found]
    print_table("recipes", ("name", "task", "what it is"), rows, text=(1, 2), plain=True)
