"""YAML that nobody means well with: refused in a line, in time that grows with the file and no faster."""

import time

import pytest

from phmctl.errors import RecipeError, nearest
from phmctl.recipe.documents import compose, parse_document
from phmctl.shipped import shipped
from tests.recipe.parsing import parse_recipe

MINIATURE = (shipped("recipes") / "miniature.yaml").read_text(encoding="utf-8")


def refusal(text: str, *overrides: str) -> str:
    begun = time.monotonic()
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, where="r.yaml", overrides=overrides)
    assert time.monotonic() - begun < 5
    return str(caught.value)


@pytest.mark.parametrize("text", ["a: &a {b: 1}\nc: {<<: *a}", "c: *a", "&a [*a]", "a: &a [x]"])
def test_anchors_and_aliases_are_refused_where_they_stand(text: str) -> None:
    assert refusal(text).startswith("r.yaml:1: not YAML as it is read here: anchors and aliases (a)")


@pytest.mark.parametrize("text", ["a: " + "[" * 400 + "]" * 400, "{a: " * 400 + "1" + "}" * 400])
def test_deep_nesting_is_refused(text: str) -> None:
    assert refusal(text).startswith("r.yaml: not YAML as it is read here: maximum recursion depth exceeded")


def test_a_long_file_is_refused_unread() -> None:
    assert refusal("#" * 140_000) == "r.yaml: not YAML as it is read here: more than 131,072 characters"


def test_a_file_of_unknown_keys_is_refused() -> None:
    problems = refusal("".join(f"k{n}: 1\n" for n in range(4_000))).split("\n")
    assert (len(problems), problems[-1]) == (101, "... and more")


@pytest.mark.parametrize("tag", ["!!int abc", "!!python/name:os.system x", "!!set {a}", "!x 1", "! 1"])
def test_tags_are_refused(tag: str) -> None:
    assert "write plain values" in refusal(f"training: {{steps: {tag}}}")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        *((text, text) for text in ("1:30", "010", "0x10", "yes", "off", "2001-13-45", "2001-01-01", "1:30.5", "=")),
        ("1_000", 1000),
        ("-5", -5),
        ("+5", 5),
        ("0", 0),
        ("1e-4", 1e-4),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("5.", 5.0),
        ("-.inf", float("-inf")),
        ("true", True),
        ("False", False),
        ("~", None),
        ("", None),
        ("null", None),
    ],
)
def test_values_are_those_of_yaml_1_2(written: str, meant: object) -> None:
    value = compose(written)[1]
    assert (value, type(value)) == (meant, type(meant))


def test_keys_that_yaml_1_1_takes_for_truth_values_are_names() -> None:
    assert parse_document("no: a\non: b\ny: c", "r", RecipeError).content == {"no": "a", "on": "b", "y": "c"}


@pytest.mark.parametrize(
    ("override", "problem"),
    [
        ("training.steps=1:30", "training.steps should be a valid integer, not '1:30'"),
        ("training.tensorboard=yes", "training.tensorboard should be a valid boolean, not 'yes'"),
        ("model.width=" + "1" + "0" * 17, "model.width should be less than or equal to 65536"),
        ("model.width=1048576", "model.width should be less"),
        ("decoding.beam=1000000000", "decoding.beam should be less"),
        ("decoding.alpha=1e300", "decoding.alpha should be less"),
        ("decoding.max_ratio=1e300", "decoding.max_ratio should be less"),
        ("decoding.max_extra=1000000000", "decoding.max_extra should be less"),
        ("training.seed=" + "7" * 40, "training.seed should be less than 9223372036854775808"),
        ("training.seed=" + "7" * 5000, "--set training.seed="),
        ("training.steps=1000000001", "training.steps should be less than or equal to 1000000000"),
        ("model.encoder_layers=1001", "model.encoder_layers should be less than or equal to 1000"),
        ("model.n=1025", "model.n should be less than or equal to 1024"),
    ],
)
def test_values_that_no_model_can_have_are_refused(override: str, problem: str) -> None:
    assert problem in refusal(MINIATURE, override)


@pytest.mark.parametrize("text", ['a: "\\U00110000"', "? [{a: b}]\n: c", '"\\ud800": 1', "? {a: b}\n: c", "\x1b: 1"])
def test_what_yaml_lets_through_and_python_does_not_is_refused(text: str) -> None:
    assert refusal(text).startswith("r.yaml")


def test_the_nearest_name_is_looked_for_among_names_only() -> None:
    begun = time.monotonic()
    assert nearest("x" * 1_000_000, ["x" * 999_999]) == ""
    assert nearest("widht", ["x" * 1_000_000, "width"]) == " (did you mean 'width'?)"
    assert time.monotonic() - begun < 2
