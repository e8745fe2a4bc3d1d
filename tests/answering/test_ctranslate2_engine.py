"""Compare CTranslate2 with our search; skipped if CTranslate2 is not installed."""

import pytest
import torch

pytest.importorskip("ctranslate2")

from phmctl.answering.beam import BeamEngine, pad
from phmctl.answering.ctranslate2 import CTranslate2Engine
from phmctl.answering.opening import MODEL
from phmctl.data import EOS
from phmctl.data.tokenizer import TokenizerPair
from phmctl.export.ctranslate2 import write_ctranslate2
from phmctl.export.forms import dense_form
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection
from tests.answering.conftest import TEXT, Kit, sharp_model
from tests.answering.fakes import forced

SETTINGS = {"algebra": "phm", "n": 4, "generator": "dense", "generator_bias": True}
SECTION = TransformerSection(width=32, feed_forward=64, heads=4, encoder_layers=1, decoder_layers=2, **SETTINGS)


@pytest.fixture(scope="module")
def pair(kit: Kit, tmp_path_factory: pytest.TempPathFactory):
    size = kit.tokenizers.target.size
    model = sharp_model(size, **SETTINGS)
    with torch.no_grad():
        model.generator.bias[EOS] += 1.0  # some outputs end with EOS, others are truncated
        model.generator.bias[:EOS] -= 20.0  # forbidden tokens are improbable, as after training
    folder = tmp_path_factory.mktemp("export")
    write_ctranslate2(
        dense_form(model, SECTION, {"source": size, "target": size}), kit.tokenizers, "float32", 64, folder
    )
    ours = BeamEngine(model, torch.device("cpu"))
    return ours, CTranslate2Engine(folder / MODEL, kit.tokenizers, "float32", threads=1), kit.tokenizers, folder


def sources(tokenizers: TokenizerPair) -> list[list[int]]:
    return [[*ids, EOS] for ids in tokenizers.source.encode(TEXT[:6])]


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_hypotheses_and_scores_equal_those_of_torch(pair, beam: int, alpha: float) -> None:
    ours, theirs, tokenizers, _ = pair
    settings = DecodingSection(beam=beam, alpha=alpha, max_ratio=1.0, max_extra=3)
    rows = sources(tokenizers)
    by_torch, by_library = (
        engine.search(rows, settings, allowed=tokenizers.target.size, n_best=beam) for engine in (ours, theirs)
    )
    assert len({len(hypotheses[0].tokens) for hypotheses in by_torch}) > 1
    for row, expected, hypotheses in zip(rows, by_torch, by_library, strict=True):
        assert hypotheses[0].tokens == expected[0].tokens
        assert hypotheses[0].score == pytest.approx(expected[0].score, abs=1e-4)
        scored = forced(ours.model, pad([row] * beam), [hypothesis.tokens for hypothesis in hypotheses], alpha)
        scores = [hypothesis.score for hypothesis in hypotheses]
        assert scores == pytest.approx([hypothesis.score for hypothesis in scored], abs=1e-4)
        assert scores == sorted(scores, reverse=True)
        log_probs = [hypothesis.log_prob for hypothesis in hypotheses]
        assert log_probs == pytest.approx([hypothesis.log_prob for hypothesis in scored], abs=1e-4)


def test_the_best_hypothesis_does_not_depend_on_n_best(pair) -> None:
    _, theirs, tokenizers, _ = pair
    settings = DecodingSection(beam=4, max_ratio=1.0, max_extra=3)
    best, several = (theirs.search(sources(tokenizers), settings, allowed=999, n_best=count) for count in (1, 4))
    assert [hypotheses[0].tokens for hypotheses in best] == [hypotheses[0].tokens for hypotheses in several]


def test_each_sentence_has_its_own_length_limit(pair) -> None:
    ours, theirs, tokenizers, _ = pair
    settings = DecodingSection(beam=2, max_ratio=0.5, max_extra=0)
    rows = [sources(tokenizers)[2], sources(tokenizers)[1][-3:]]
    limits = [(len(row) - 1) // 2 for row in rows]
    assert limits[0] > 3 * limits[1]
    for engine in (ours, theirs):
        results = engine.search(rows, settings, allowed=tokenizers.target.size, n_best=1)
        for (best, *_), limit in zip(results, limits, strict=True):
            assert len(best.tokens) <= limit
