"""The shipped recipes, as ``phmctl recipes`` tells of them."""

from typing import Any

import yaml

from phmctl.recipe.loading import find_recipe, load_recipe
from phmctl.shipped import shipped, shipped_names

_QUICK: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # for files of the package: libyaml knows no limits


def list_recipes() -> list[dict[str, str]]:
    """Return ``name``, ``task`` and ``description`` of each shipped recipe, by name. The schema is not asked."""
    return [_describe(name) for name in shipped_names("recipes")]


def _describe(name: str) -> dict[str, str]:
    own = content = _read(name)
    while "task" not in content and "extends" in content:
        content = _read(content["extends"])
    return {"name": name, "task": content.get("task", "translation"), "description": own.get("description", "")}


def _read(name: str) -> Any:
    return yaml.load((shipped("recipes") / f"{name}.yaml").read_bytes(), _QUICK)


def describe_recipe(name: str) -> dict[str, Any]:
    """Return a recipe as it is written (``text``), where, and every key with its value (``recipe``)."""
    path = find_recipe(name)
    recipe = load_recipe(name).model_dump()
    return {"name": recipe["name"], "path": str(path), "text": path.read_text(encoding="utf-8"), "recipe": recipe}
