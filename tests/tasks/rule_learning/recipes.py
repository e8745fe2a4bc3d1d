from typing import Any

from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import RuleDataSection, RuleRecipe


def rule_recipe(name: str = "hamilton", *settings: str) -> RuleRecipe:
    recipe = load_recipe(name, ["training.device=cpu", *settings])
    assert isinstance(recipe, RuleRecipe)
    return recipe


def data(product: str = "hamilton", **changes: Any) -> RuleDataSection:
    return RuleDataSection(**({"product": product, "samples": 50, "dims": 2} | changes))
