"""``phmctl recipes``."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from phmctl.cli.main import app
from phmctl.errors import RecipeError
from phmctl.recipe.loading import load_recipe
from phmctl.shipped import shipped, shipped_names


def call(*arguments: str) -> Result:
    result = CliRunner().invoke(app, ["recipes", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_each_recipe_has_a_line() -> None:
    lines = {line.split()[0]: line for line in call().stdout.splitlines()}
    for name in shipped_names("recipes"):
        assert load_recipe(name).description in lines[name]
        assert load_recipe(name).task in lines[name]


def test_one_is_shown_with_its_comments() -> None:
    assert call("hamilton").stdout == (shipped("recipes") / "hamilton.yaml").read_text(encoding="utf-8")


def test_json() -> None:
    found = json.loads(call("--json").stdout)
    assert [recipe["name"] for recipe in found] == shipped_names("recipes")
    one = json.loads(call("hamilton", "--json").stdout)
    assert one["recipe"] == json.loads(json.dumps(load_recipe("hamilton").model_dump()))
    assert Path(one["path"]).read_text(encoding="utf-8") == one["text"]


def test_a_wrong_name_has_the_nearest() -> None:
    with pytest.raises(RecipeError, match="did you mean 'hamilton'"):
        call("hamiltn")
