"""Hostile YAML: refused in one line, in time linear in the file."""

import re
import time

import pytest

from phmctl.errors import RecipeError
from phmctl.recipe.documents import compose, parse_document
from phmctl.shipped import shipped
from tests.recipe.parsing import parse_recipe

MINIATURE = (shipped("recipes") / "miniature.yaml").read_text(encoding="utf-8")


def refusal(text: str, *overrides: str) -> str:
    start = time.monotonic()
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, overrides)
    assert time.monotonic() - start < 5
    return str(caught.value)


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("name: &a [1]\ntask: *a", "r.yaml:1: .*aliases"),
        ("a: &a [*a]", "r.yaml:1: "),
        ("a: " + "[" * 60_000 + "]" * 60_000, "r.yaml: .*50 levels"),
        ('a: "\\U00110000"', "r.yaml"),  # accepted by YAML but not by Python
        ("? [{a: b}]\n: c", "r.yaml"),
        ("training: {steps: !!python/name:os.system x}", "r.yaml:1: .*tag"),
    ],
)
def test_a_hostile_document_is_refused(text: str, place: str) -> None:
    assert re.match(place, refusal(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *((text, text) for text in ("1:30", "010", "0x10", "yes", "off", "2001-13-45", "2001-01-01", "1:30.5", "=")),
        ("1_000", 1000),
        ("+5", 5),
        ("1e-4", 1e-4),
        (".5", 0.5),
        ("-.inf", float("-inf")),
        ("true", True),
        ("~", None),
    ],
)
def test_values_are_those_of_yaml_1_2(text: str, expected: object) -> None:
    value = compose(text)[1]
    assert (value, type(value)) == (expected, type(expected))


def test_keys_that_yaml_1_1_reads_as_booleans_are_names() -> None:
    assert parse_document("no: a\non: b\ny: c", "r", RecipeError).content == {"no": "a", "on": "b", "y": "c"}


@pytest.mark.parametrize(
    ("override", "place"),
    [
        ("training.steps=1:30", "training.steps should be a valid integer, not '1:30'"),
        ("training.tensorboard=yes", "training.tensorboard should be a valid boolean, not 'yes'"),
        ("model.width=" + "1" + "0" * 17, "model.width should be less than or equal to 65536"),
        ("training.seed=" + "7" * 5000, "setting 'training.seed="),
    ],
)
def test_values_out_of_range_are_refused(override: str, place: str) -> None:
    assert place in refusal(MINIATURE, override)
