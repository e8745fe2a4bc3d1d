import json

import pytest
import torch

from phmctl.assembly import build_transformer
from phmctl.benchmarks.decoding import Workload, applied_weights, measure, searcher
from phmctl.benchmarks.training import variants_of
from phmctl.benchmarks.uncached import Uncached
from phmctl.errors import UserError
from phmctl.recipe.schema import (
    DecodingSection,
    ParallelSection,
    TransformerSection,
    TranslationRecipe,
    TranslationTraining,
)

RECIPE = TranslationRecipe(
    name="tiny",
    data=ParallelSection(card="miniature", vocabulary=64),
    model=TransformerSection(
        algebra="phm", n=4, width=32, feed_forward=64, heads=4, encoder_layers=1, decoder_layers=2, upsize=2
    ),
    training=TranslationTraining(steps=1, device="cpu"),
    decoding=DecodingSection(beam=3, batch_tokens=24),
)
WORK = Workload([[5, 6, 7, 3], [8, 3], [9, 10, 3], [11, 3]], [4, 1, 6, 0])


def test_each_sentence_is_searched_to_its_length() -> None:
    torch.manual_seed(0)
    model = build_transformer(RECIPE.model, 64, 64).eval()
    found = searcher(model, WORK, RECIPE, 64)()
    assert sorted(len(best[0].tokens) for best in found) == [0, 1, 4, 6]


def test_the_uncached_search_finds_the_same() -> None:
    torch.manual_seed(0)
    model = build_transformer(RECIPE.model, 64, 64).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(2.0)  # sharp, so that rounding decides nothing
    cached = searcher(model, WORK, RECIPE, 64)()
    uncached = searcher(Uncached(model, whole=True), WORK, RECIPE, 64)()
    alone = sorted(
        searcher(Uncached(model, whole=False), WORK, RECIPE, 64, one_by_one=True)(), key=lambda best: best[0].tokens
    )
    assert [best[0].tokens for best in cached] == [best[0].tokens for best in uncached]
    assert sorted(best[0].tokens for best in cached) == [best[0].tokens for best in alone]


def test_applied_weights_are_the_decoders_matrices_and_the_generator() -> None:
    settings = RECIPE.model.model_copy(update={"algebra": "real", "n": 1, "upsize": 1})
    model = build_transformer(settings, 64, 64)
    matrices = sum(p.numel() for p in model.decoder.parameters() if p.ndim == 2)
    memory = 2 * 2 * 32 * 32  # keys and values of the memory, in both layers
    assert applied_weights(settings, 64) == matrices - memory + 64 * 32
    assert applied_weights(RECIPE.model, 0) == 2 * (matrices - memory)
    composed = settings.model_copy(update={"compose_layers": "bilinear", "compose_heads": "bilinear"})
    # Over two layers five d×d maps; in each of four attention modules three in the place of one.
    assert applied_weights(composed, 0) == matrices - memory + (5 + 4 * 2) * 32 * 32


def test_a_part_stands_evenly_in_the_whole() -> None:
    work = Workload([[row, 3] for row in range(10)], list(range(10)))
    assert work.take(5).lengths == [0, 2, 4, 6, 8]
    assert work.take(99).lengths == work.lengths
    assert WORK.tokens == 15


def test_a_dense_recipe_is_its_own_twin() -> None:
    dense = RECIPE.model_copy(update={"model": RECIPE.model.model_copy(update={"algebra": "real", "n": 1})})
    assert list(variants_of(dense)) == ["dense"]


def test_a_composed_recipe_is_measured_against_its_base_too() -> None:
    composed = {"compose_layers": "bilinear", "compose_in": "decoder", "composition_rank": 16}
    recipe = RECIPE.model_copy(update={"model": RECIPE.model.model_copy(update=composed)})
    found = variants_of(recipe)
    assert list(found) == ["dense", "base", "base phm-n4-x2", "phm-n4-x2-layers-bilinear-decoder"]
    assert found["base"].model == RECIPE.model.dense_twin
    assert found["base phm-n4-x2"] == RECIPE
    bench = measure(recipe, WORK, (64, 64), uncached=0, rounds=1, lengths=(), baseline="base")
    allowed = {row.candidate: row.allowed for row in bench.rows}
    assert allowed["base"] == 1
    assert allowed["dense"] < 1  # the composition takes products of its own
    assert allowed["base phm-n4-x2"] > allowed["phm-n4-x2-layers-bilinear-decoder"]
    assert bench.rows[0].uncached == {}
    assert "products allow" in bench.tables()[0].columns
    with pytest.raises(UserError, match="candidate 'bass'"):
        measure(recipe, WORK, (64, 64), uncached=0, rounds=1, baseline="bass")


def test_measure_fits_together() -> None:
    found = measure(RECIPE, WORK, (64, 64), uncached=2, rounds=2, lengths=(2, 4))
    assert [row.candidate for row in found.rows] == ["dense", "phm-n4-x2"]
    for row in found.rows:
        operations = 2 * applied_weights(RECIPE.model, 64) * 3 * 15
        assert row.sentences_per_second == pytest.approx(4 / row.seconds.median)
        assert row.sgemm_share * found.sgemm_rate == pytest.approx(operations / row.seconds.median)
        assert list(row.uncached) == ["forward", "decoder"]
        for alone in row.uncached.values():
            whole = alone.seconds.median * 15 / found.uncached_tokens
            assert alone.sentences_per_second == pytest.approx(4 / whole)
            assert alone.speedup == pytest.approx(whole / row.seconds.median)
    assert (found.uncached_sentences, found.uncached_tokens) == (2, 12)
    assert found.rows[0].speed.median == 1
    assert list(found.step_seconds) == [2, 4]
    assert json.loads(json.dumps(found.as_json()))["output_tokens"] == 15
