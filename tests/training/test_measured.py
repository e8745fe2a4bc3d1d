"""``training.minutes``: steps that fit into a time, kept in the run, so that a resumed training ends where it would."""

from pathlib import Path

import pytest

import phmctl
from phmctl.errors import RecipeError
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import TranslationRecipe
from phmctl.training import measured
from tests.training.copying import copying_recipe


def timed(**training: object) -> TranslationRecipe:
    return copying_recipe(n=2, steps=0, schedule="linear", **training)  # type: ignore[arg-type]


def test_minutes_become_steps_that_a_resumed_training_keeps(
    copying_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = phmctl.train(timed(minutes=0.02), data=copying_data, runs=tmp_path)
    training = first.run.recipe.training
    assert training.steps == first.steps >= 1
    assert training.minutes == 0
    assert first.run.environment()["minutes"] == 0.02
    monkeypatch.setattr(measured, "stepper", lambda *_: pytest.fail("the run says how many steps there are"))
    again = phmctl.train(timed(minutes=0.02), data=copying_data, runs=tmp_path, resume=True)
    assert again.run.folder == first.run.folder
    assert again.steps_now == 0


def test_twice_the_time_is_about_twice_the_steps(copying_data: Path) -> None:
    from phmctl.devices import pick_device
    from phmctl.tasks.registry import kind_of

    recipe = timed(minutes=1.0)
    task = kind_of(recipe).open(recipe, copying_data)
    one, ten = (
        measured.steps_within(minutes, task, "dense", recipe.training, pick_device("cpu")) for minutes in (1.0, 10.0)
    )
    assert 3 < ten / one < 33
    with pytest.raises(RecipeError):
        measured.steps_within(1e-9, task, "dense", recipe.training, pick_device("cpu"))


@pytest.mark.parametrize("settings", [["training.minutes=5"], ["training.steps=0"]])
def test_steps_or_minutes_but_not_both(settings: list[str]) -> None:
    with pytest.raises(RecipeError):
        load_recipe("miniature", settings)
    load_recipe("miniature", ["training.steps=0", "training.minutes=5"])
