"""``extends``: a recipe that contains only its differences from another."""

from pathlib import Path

import pytest

from phmctl.errors import RecipeError
from phmctl.recipe.loading import load_recipe, resolve
from phmctl.recipe.schema import differences

OWN = "name: mine\nextends: miniature\nmodel:\n  heads: 8\n"


@pytest.fixture
def write(tmp_path: Path):
    def write_recipe(text: str, name: str = "mine.yaml") -> str:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
        return str(tmp_path / name)

    return write_recipe


def refusal(path: str) -> str:
    with pytest.raises(RecipeError) as caught:
        load_recipe(path)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_sections_merge_key_by_key_and_the_recipe_s_own_keys_win(write) -> None:
    changes = differences(load_recipe("miniature"), load_recipe(write(OWN)))
    described = load_recipe("miniature").description
    assert changes == {"name": ("miniature", "mine"), "description": (described, ""), "model.heads": (4, 8)}


def test_a_chain_of_files_each_relative_to_its_own_folder(write) -> None:
    write("name: base\nextends: ../mine.yaml\nmodel: {n: 4, algebra: phm}\ntraining: {steps: 7}\n", "sub/base.yaml")
    write(OWN)
    recipe = load_recipe(write("name: top\nextends: sub/base.yaml\ntraining: {warmup: 3}\n", "top.yaml"))
    assert (recipe.name, recipe.model.heads, recipe.model.n) == ("top", 8, 4)
    assert (recipe.training.steps, recipe.training.warmup) == (7, 3)


def test_a_program_s_keys_extend_too_and_options_win() -> None:
    recipe = resolve({"name": "mine", "extends": "miniature", "model": {"heads": 8}}, ["model.width=64"])
    assert (recipe.model.heads, recipe.model.width, recipe.data.card) == (8, 64, "miniature")


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        (OWN.replace("miniature", "mine.yaml"), "mine.yaml:2: ", "extends this recipe"),
        (OWN.replace("miniature", "miniatrue"), "mine.yaml:2: ", "did you mean 'miniature'"),
        (OWN.replace("miniature", "x" * 5000), "mine.yaml:2: ", "too long"),
        (OWN.replace("miniature", "[a]"), "mine.yaml:2: ", "name or file"),
        (OWN.replace("miniature", "base.yaml"), "base.yaml:2: ", "extends this recipe"),
        (OWN.replace("miniature", "wrong.yaml"), "wrong.yaml:3: ", "training.steps"),
        (OWN.replace("heads", "haeds"), "mine.yaml:4: ", "did you mean 'heads'"),
        (OWN.replace("miniature", "twice.yaml"), "twice.yaml:3: ", "already"),
        (OWN.replace("name: mine", ""), "mine.yaml: ", "'name' is missing"),
    ],
)
def test_a_problem_names_its_file_and_line(write, text: str, place: str, reason: str) -> None:
    write("name: base\nextends: mine.yaml\n", "base.yaml")
    write("extends: miniature\ntraining:\n  steps: ten\n", "wrong.yaml")
    write("extends: miniature\ntraining: {steps: 3}\ntraining: {steps: 4}\n", "twice.yaml")
    message = refusal(write(text))
    assert Path(message.split(": ")[0] + ": ").name.startswith(place)
    assert reason in message
