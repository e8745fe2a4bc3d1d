"""``bench decode`` searches each sentence to the length of its reference."""

from collections.abc import Callable

import pytest
import torch

from phmctl.assembly import build_transformer
from phmctl.benchmarks.decoding import evenly, searcher
from phmctl.benchmarks.training import variants_of
from phmctl.decoding.translator import Hypothesis
from phmctl.nn.convert import to_dense
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection, ParallelSection, TranslationRecipe, TranslationTraining

RECIPE = TranslationRecipe(
    name="tiny",
    data=ParallelSection(card="miniature", vocabulary=64),
    model=TransformerSection(
        algebra="phm", n=4, width=32, feed_forward=64, heads=4, encoder_layers=1, decoder_layers=2, upsize=2
    ),
    training=TranslationTraining(steps=1, device="cpu"),
    decoding=DecodingSection(beam=3, batch_tokens=24),
)


def test_each_sentence_is_searched_to_its_length() -> None:
    torch.manual_seed(0)
    model = build_transformer(RECIPE.model, 64, 64).eval()

    def search(model: torch.nn.Module) -> Callable[[], list[list[Hypothesis]]]:
        return searcher(model, [[5, 6, 7, 3], [8, 3], [9, 10, 3], [11, 3]], [4, 1, 6, 0], RECIPE, 64)

    best = search(model)()
    assert sorted(len(one[0].tokens) for one in best) == [0, 1, 4, 6]
    assert [one[0].tokens for one in search(to_dense(model))()] == [one[0].tokens for one in best]


def test_numbers_evenly_apart() -> None:
    assert evenly(10, 5) == [0, 2, 4, 6, 8]
    assert evenly(3, 99) == [0, 1, 2]


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["dense", "phm-n4-x2"]),
        ({"algebra": "real", "n": 1}, ["dense"]),
        (
            {"compose_layers": "bilinear", "compose_in": "decoder", "composition_rank": 16},
            ["dense", "base", "base phm-n4-x2", "phm-n4-x2-layers-bilinear-decoder"],
        ),
    ],
)
def test_variants(changes: dict[str, object], names: list[str]) -> None:
    recipe = RECIPE.model_copy(update={"model": RECIPE.model.model_copy(update=changes)})
    variants = variants_of(recipe)
    assert list(variants) == names
    assert variants[names[-1]].model == (recipe.model if len(names) > 1 else recipe.dense_twin.model)
    if "base" in variants:
        assert variants["base"].model == RECIPE.model.dense_twin
        assert variants["base phm-n4-x2"] == RECIPE
