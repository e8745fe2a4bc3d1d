"""CTranslate2 finds what our own search finds, with our own scores. Skipped where it is not installed."""

from pathlib import Path

import pytest
import torch

pytest.importorskip("ctranslate2")

from phmctl.data.special import EOS
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.beam import TorchEngine, pad
from phmctl.decoding.ctranslate2_engine import CTranslate2Engine
from phmctl.errors import RunError
from phmctl.export.ctranslate2 import write_ctranslate2
from phmctl.export.dense import dense_form
from phmctl.exports import MODEL
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection
from tests.decoding.conftest import TEXT, Kit, sharp_model
from tests.decoding.fakes import forced

SETTINGS = {"algebra": "phm", "n": 4, "generator": "dense", "generator_bias": True}
SECTION = TransformerSection(width=32, feed_forward=64, heads=4, encoder_layers=1, decoder_layers=2, **SETTINGS)


@pytest.fixture(scope="module")
def pair(kit: Kit, tmp_path_factory: pytest.TempPathFactory):
    size = kit.tokenizers.target.size
    model = sharp_model(size, **SETTINGS)
    with torch.no_grad():
        model.generator.bias[EOS] += 1.0  # some outputs end of themselves, others are cut
        model.generator.bias[:EOS] -= 20.0  # as trained: what must not be produced has no probability to speak of
    folder = tmp_path_factory.mktemp("export")
    write_ctranslate2(
        dense_form(model, SECTION, {"source": size, "target": size}), kit.tokenizers, "float32", 64, folder
    )
    ours = TorchEngine(model, torch.device("cpu"))
    return ours, CTranslate2Engine(folder / MODEL, kit.tokenizers, "float32", threads=1), kit.tokenizers, folder


def sources(tokenizers: TokenizerPair) -> list[list[int]]:
    return [[*ids, EOS] for ids in tokenizers.source.encode(TEXT[:6])]


@pytest.mark.parametrize("beam", [1, 4])
@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
def test_hypotheses_and_scores_are_those_of_torch(pair, beam: int, alpha: float) -> None:
    ours, theirs, tokenizers, _ = pair
    settings = DecodingSection(beam=beam, alpha=alpha, max_ratio=1.0, max_extra=3)
    rows = sources(tokenizers)
    found = [engine.search(rows, settings, allowed=tokenizers.target.size, n_best=beam) for engine in (ours, theirs)]
    assert len({len(hypotheses[0].tokens) for hypotheses in found[0]}) > 1
    for row, one, other in zip(rows, *found, strict=True):
        assert other[0].tokens == one[0].tokens
        assert other[0].score == pytest.approx(one[0].score, abs=1e-4)
        wanted = forced(ours.model, pad([row] * beam), [each.tokens for each in other], alpha)
        assert [each.score for each in other] == pytest.approx([each.score for each in wanted], abs=1e-4)
        assert [each.log_prob for each in other] == pytest.approx([each.log_prob for each in wanted], abs=1e-4)
        assert [each.score for each in other] == sorted((each.score for each in other), reverse=True)


def test_the_best_alone_is_the_first_of_several(pair) -> None:
    _, theirs, tokenizers, _ = pair
    settings = DecodingSection(beam=4, max_ratio=1.0, max_extra=3)
    one, several = (theirs.search(sources(tokenizers), settings, allowed=999, n_best=count) for count in (1, 4))
    assert [hypotheses[0].tokens for hypotheses in one] == [hypotheses[0].tokens for hypotheses in several]


def test_a_short_sentence_is_cut_at_its_own_length_beside_a_long_one(pair) -> None:
    ours, theirs, tokenizers, _ = pair
    settings = DecodingSection(beam=2, max_ratio=0.5, max_extra=0)
    rows = [sources(tokenizers)[2], sources(tokenizers)[1][-3:]]
    limits = [(len(row) - 1) // 2 for row in rows]
    assert limits[0] > 3 * limits[1]
    for engine in (ours, theirs):
        found = engine.search(rows, settings, allowed=tokenizers.target.size, n_best=1)
        assert all(len(one.tokens) <= limit for (one, *_), limit in zip(found, limits, strict=True))


def test_a_model_that_is_damaged_is_an_error(pair, tmp_path: Path) -> None:
    *_, tokenizers, folder = pair
    model = tmp_path / "model"
    model.mkdir()
    for path in (folder / MODEL).iterdir():
        (model / path.name).write_bytes(path.read_bytes()[:100])
    with pytest.raises(RunError, match="cannot be loaded by CTranslate2"):
        CTranslate2Engine(model, tokenizers, "float32")
