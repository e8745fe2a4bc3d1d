"""Recipes: parsing, overrides, and the places named in errors."""

from typing import Any

import pytest

from phmctl.errors import RecipeError
from phmctl.recipe.loading import common_overrides, dump_recipe, load_recipe
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection
from phmctl.recipe.schema import differences
from tests.recipe.parsing import parse_recipe

MINIMAL = """\
name: trial
data:
  card: miniature
model:
  width: 64
  heads: 4
training:
  steps: 10
"""


def refusal(text: str, *overrides: str) -> str:
    with pytest.raises(RecipeError) as caught:
        parse_recipe(text, overrides)
    return str(caught.value)


def test_another_corpus_or_name_drops_the_description() -> None:
    assert load_recipe("miniature").description
    assert load_recipe("miniature", ["training.steps=3"]).description
    for change in ("name=talks", "data.card=talks"):
        assert load_recipe("miniature", [change]).description == ""
    assert load_recipe("miniature", ["name=talks", "description=ours"]).description == "ours"


@pytest.mark.parametrize(
    ("text", "places"),
    [
        (
            MINIMAL.replace("width: 64", "widht: 64").replace(
                "steps: 10", "steps: ten\n  warmpu: 3\n  schedule: linaer"
            ),
            [
                "r.yaml:5: unknown key 'model.widht' (did you mean 'width'?)",
                "r.yaml:8: training.steps",
                "r.yaml:9: unknown key 'training.warmpu' (did you mean 'warmup'?)",
                "r.yaml:10: training.schedule",
            ],
        ),
        (
            MINIMAL + "  warmup: 3\n  steps: 20\n  clip: no\nname: other\n",
            [
                "r.yaml:10: key 'training.steps' is already in line 8",
                "r.yaml:11: training.clip",
                "r.yaml:12: key 'name'",
            ],
        ),
    ],
)
def test_all_problems_are_reported_at_once_with_their_lines(text: str, places: list[str]) -> None:
    message = refusal(text)
    assert all(place in message for place in places)
    assert len(message.splitlines()) == len(places)


def test_a_fixed_algebra_implies_n() -> None:
    overrides = ["model.algebra=quaternion", "model.n=4"]
    recipes = [parse_recipe(MINIMAL, choice) for choice in (overrides, overrides[:1])]
    assert [recipe.model.n for recipe in recipes] == [4, 4]
    assert differences(*recipes) == {}
    assert parse_recipe(dump_recipe(recipes[1])) == recipes[0]


def test_common_overrides() -> None:
    def keys(**options: Any) -> dict[str, object]:
        return {override.key: override.value for override in common_overrides(**options)}

    assert keys(n=4, algebra=None, steps=7) == {"model.n": 4, "training.steps": 7, "model.algebra": "phm"}
    no_factors = {"model.rank": None}
    assert keys(n=1) == {"model.n": 1, "model.algebra": "real", **no_factors}
    assert keys(algebra="quaternion") == {"model.algebra": "quaternion", "model.n": 1, **no_factors}
    assert keys(algebra="quaternion", n=4) == {"model.algebra": "quaternion", "model.n": 4, **no_factors}
    assert "model.rank" not in keys(algebra="low-rank")
    ranked = MINIMAL.replace("training:", "  algebra: phm\n  n: 4\n  rank: 4\ntraining:")
    assert parse_recipe(ranked, common_overrides(n=1)).model.algebra == "real"


CLASSIFIER = """\
name: trial
task: classification
data:
  card: agreement
model:
  kind: encoder
  width: 64
training:
  steps: 10
"""
PAIRS = CLASSIFIER.replace("encoder", "lstm-pair")
RULE = """\
name: trial
task: rule
data:
  product: hamilton
model:
  n: 4
  algebra: phm
training:
  steps: 10
"""


@pytest.mark.parametrize(
    ("text", "overrides", "place"),
    [
        (MINIMAL, ["training.learning_rate=.inf"], "training.learning_rate"),
        (MINIMAL, common_overrides(algebra="phm"), "model: algebra 'phm'"),
        (MINIMAL.replace("  steps: 10", "  warmup: 1"), [], "training.steps"),
        (MINIMAL, common_overrides(steps=0), "steps=0: training.steps"),
        (MINIMAL, ["steps"], "setting 'steps'"),
        (MINIMAL, ["name.x=1"], "setting 'name.x=1'"),
        (MINIMAL, ["model.algebra=phm", "model.n=3"], "setting 'model.n=3': model: n = 3"),
        (MINIMAL, ["model.algebra=quaternion", "model.width=30"], "setting 'model.width=30': model: n = 4"),
        (MINIMAL + "  batch_tokens: 100\n", [], "r.yaml:9: recipe: training.batch_tokens = 100"),
        (MINIMAL, ["trainng.steps=4"], "setting 'trainng.steps=4': unknown key 'trainng' (did you mean 'training'"),
        (MINIMAL, ["model.rank=5"], "rank needs algebra: phm"),
        (MINIMAL + "  batch_size: 3\n", [], "'training.batch_size' (did you mean 'batch_tokens'"),
        (PAIRS.replace("64", "300"), common_overrides(n=7), "width = 300 and embedding_width"),
        (RULE, common_overrides(n=8), "features = 4"),
        (CLASSIFIER.replace("classification", "clasification"), [], "r.yaml:2: task"),
        (CLASSIFIER.replace("encoder", "lstm-pari"), [], "r.yaml:6: model.kind"),
        (CLASSIFIER.replace("  kind: encoder\n", ""), [], "r.yaml:5: key 'model.kind'"),
        ("- a\n", [], "mapping"),
        ("a: [1\n", [], "r.yaml:2: "),
    ],
)
def test_a_problem_is_reported_with_its_place(text: str, overrides: list[str], place: str) -> None:
    assert place in refusal(text, *overrides)


def test_the_task_selects_the_recipe_and_the_kind_its_model() -> None:
    read = {text: parse_recipe(text) for text in (MINIMAL, CLASSIFIER, PAIRS, RULE)}
    assert [type(recipe).__name__ for recipe in read.values()] == [
        "TranslationRecipe",
        "ClassificationRecipe",
        "ClassificationRecipe",
        "RuleRecipe",
    ]
    assert isinstance(read[CLASSIFIER].model, EncoderClassifierSection)
    assert isinstance(read[PAIRS].model, PairClassifierSection)
    assert all(parse_recipe(dump_recipe(recipe)) == recipe for recipe in read.values())


@pytest.mark.parametrize("text", [CLASSIFIER, PAIRS.replace("64", "300"), RULE])
def test_the_common_options_work_for_every_task(text: str) -> None:
    assert parse_recipe(text, common_overrides(n=1)).model.n == 1
    recipe = parse_recipe(text, common_overrides(n=2, seed=7, steps=3, device="cpu"))
    assert recipe.variant == "phm-n2"
    assert (recipe.training.seed, recipe.training.steps, recipe.training.device) == (7, 3, "cpu")
    quaternion = parse_recipe(text, common_overrides(algebra="quaternion"))
    assert (quaternion.variant, quaternion.model.n) == ("quaternion", 4)
    assert quaternion.model.dense_twin.variant == "real"
