import json
import re

import pytest
from typer.testing import CliRunner

from phmctl.cli.main import app
from phmctl.errors import UserError
from phmctl.recipe.loading import dump_recipe, load_recipe


def run(*args):
    return CliRunner().invoke(app, ["count-params", *args])


def test_the_table_goes_to_stdout_and_the_notes_to_stderr():
    result = run("miniature", "--n", "1,4")
    assert result.exit_code == 0
    assert "phm-n4" in result.stdout
    assert "as the recipe asks" in result.stderr
    assert "as the recipe asks" not in result.stdout


def test_json_is_one_document():
    result = run("ceng501-de-en", "--n", "1,16", "--json")
    content = json.loads(result.stdout)
    assert [variant["totals"]["parameters"] for variant in content["variants"]] == [27_309_056, 1_844_224]
    assert content["recipe"] == "ceng501-de-en"


def test_settings_and_algebras():
    result = run("miniature", "--algebra", "quaternion", "--set", "model.width=64", "--set", "model.heads=2", "--json")
    (variant,) = json.loads(result.stdout)["variants"]
    assert variant["model"]["width"] == 64
    assert variant["model"]["algebra"] == "quaternion"
    assert variant["rules"] == 0


@pytest.mark.parametrize(
    ("args", "variants"),
    [
        (["--algebra", "low-rank", "--set", "model.rank=8"], ["low-rank-r8"]),
        (["--n", "2,4", "--set", "model.parametrization=factors"], ["phm-n2-factors", "phm-n4-factors"]),
        (["--algebra", "monarch", "--n", "2,4"], ["monarch-n2", "monarch-n4"]),
    ],
)
def test_settings_that_only_the_algebra_asked_for_has(args, variants):
    content = json.loads(run("miniature", *args, "--json").stdout)
    assert [variant["name"] for variant in content["variants"]] == [f"miniature {name}" for name in variants]


def test_a_wrong_recipe_is_not_blamed_on_a_variant(tmp_path):
    text = dump_recipe(load_recipe("miniature"))
    (tmp_path / "own.yaml").write_text(re.sub(r"(?m)^  heads: .*$", "  heads: 7", text))
    result = run(str(tmp_path / "own.yaml"), "--n", "4")
    assert "heads = 7 must divide" in str(result.exception)
    assert "--n" not in str(result.exception)


@pytest.mark.parametrize("args", [["--n", "3"], ["--n", "0"], ["--set", "model.widht=8"]])
def test_wrong_input_is_a_user_s_error(args):
    result = run("miniature", *args)
    assert isinstance(result.exception, UserError)


def test_a_published_table_is_named_in_place_of_a_recipe():
    content = json.loads(run("--paper", "table5", "--json").stdout)
    assert [row["figure"] for row in content["published"][0]["rows"]] == ["400K", "100K", "200K", "101K", "56K"]
