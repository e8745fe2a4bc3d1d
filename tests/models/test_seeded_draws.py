"""A seed decides the initial weights, whatever other threads draw."""

import pytest
import torch
from torch import nn

from phmctl.algebra.initialisation import SeededDraws
from phmctl.recipe.loading import load_recipe
from phmctl.tasks import task_of
from tests.conftest import TINY

SIZES = {"source": 64, "target": 64, "vocabulary": 64, "classes": 4, "features": 12}


def build(name: str, *settings: str) -> nn.Module:
    recipe = load_recipe(name, settings)
    return task_of(recipe).build(recipe.model, SIZES)


@pytest.mark.parametrize(
    "settings",
    [
        ("miniature", *TINY, "model.n=1", "model.algebra=real"),
        ("miniature", *TINY, "model.n=4", "model.algebra=phm", "model.rules=model"),
        ("miniature", *TINY, "model.n=4", "model.algebra=phm", "model.embeddings=phm"),
        ("miniature", *TINY, "model.n=4", "model.algebra=quaternion"),
        ("miniature", *TINY, "model.n=4", "model.algebra=phm", "model.parametrization=factors"),
        ("miniature", *TINY, "model.n=4", "model.algebra=phm", "model.parametrization=factors", "model.rank=9"),
        ("miniature", *TINY, "model.n=1", "model.algebra=low-rank", "model.rank=4"),
        ("miniature", *TINY, "model.n=4", "model.algebra=monarch"),
        ("table1-snli",),
        ("table5-agreement",),
        ("hamilton",),
    ],
    ids=lambda settings: " ".join((settings[0], *settings[1 + len(TINY) :])),
)
def test_the_draws_are_those_of_the_seed_and_touch_no_other_generator(settings: tuple[str, ...]) -> None:
    torch.manual_seed(3)
    expected = build(*settings).state_dict()
    state = torch.get_rng_state()
    with SeededDraws(3):
        built = build(*settings).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert built.keys() == expected.keys()
    for name, tensor in built.items():
        assert torch.equal(tensor, expected[name]), name
