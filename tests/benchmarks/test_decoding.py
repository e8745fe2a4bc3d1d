"""``bench decode``: each sentence is decoded to the length of its reference; comparison of engines."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from phmctl.assembly import build_transformer
from phmctl.benchmarks.models import TorchTransformer, bench_engines, searcher, variants_of
from phmctl.decoding.search import Hypothesis
from phmctl.errors import UserError
from phmctl.nn.convert import to_dense
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection, ParallelSection, TranslationRecipe, TranslationTraining
from tests.tasks.translation.runs import make_run

RECIPE = TranslationRecipe(
    name="tiny",
    data=ParallelSection(card="miniature", vocabulary=64),
    model=TransformerSection(
        algebra="phm", n=4, width=32, feed_forward=64, heads=4, encoder_layers=1, decoder_layers=2, upsize=2
    ),
    training=TranslationTraining(steps=1, device="cpu"),
    decoding=DecodingSection(beam=3, batch_tokens=24),
)


def test_each_sentence_is_decoded_to_its_length() -> None:
    torch.manual_seed(0)
    model = build_transformer(RECIPE.model, 64, 64).eval()

    def search(model: torch.nn.Module) -> Callable[[], list[list[Hypothesis]]]:
        return searcher(model, [[5, 6, 7, 3], [8, 3], [9, 10, 3], [11, 3]], [4, 1, 6, 0], RECIPE, 64)

    best = search(model)()
    assert sorted(len(hypotheses[0].tokens) for hypotheses in best) == [0, 1, 4, 6]
    dense = search(to_dense(model))()
    assert [hypotheses[0].tokens for hypotheses in dense] == [hypotheses[0].tokens for hypotheses in best]


def test_torchs_transformer_accepts_long_texts() -> None:
    model = TorchTransformer(TransformerSection(width=16, heads=2, feed_forward=16), 50)
    assert model(torch.ones(1, 1100, dtype=torch.long), torch.ones(1, 9, dtype=torch.long)).isfinite()


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({}, ["dense", "phm-n4-x2"]),
        ({"algebra": "real", "n": 1}, ["dense"]),
        (
            {"compose_layers": "bilinear", "composition_rank": 16},
            ["dense", "base", "base phm-n4-x2", "phm-n4-x2-layers-bilinear"],
        ),
    ],
)
def test_variants(changes: dict[str, object], names: list[str]) -> None:
    recipe = RECIPE.model_copy(update={"model": RECIPE.model.model_copy(update=changes)})
    variants = variants_of(recipe)
    assert list(variants) == names
    assert variants[names[-1]].model == (recipe.model if len(names) > 1 else recipe.model.dense_twin)
    if "base" in variants:
        assert variants["base"].model == RECIPE.model.dense_twin
        assert variants["base phm-n4-x2"] == RECIPE


def test_engines_translate_the_same_lines(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for engine in ("onyx", "onnx:int8"):
        with pytest.raises(UserError, match=engine):
            bench_engines(run.folder, [engine])
    pytest.importorskip("onnxruntime")
    result = bench_engines(run.folder, ["torch", "onnx"], sentences=5, rounds=1)
    assert [row["engine"] for row in result.rows] == ["torch", "onnx"]
    assert [row["same"] for row in result.rows] == [5, 5]
    assert result.rows[0]["speed"].median == 1.0
    assert all(row["sentences_per_second"] == pytest.approx(5 / row["search_seconds"].median) for row in result.rows)
    document = result.as_json()
    assert document["rows"][1]["bleu"] == document["rows"][0]["bleu"]
    assert document["decoding"]["beam"] == run.recipe.decoding.beam
