import pytest
import torch

from phmctl.decoding.beam import beam_search, forced_scores, pad
from tests.decoding.conftest import TEXT, Kit, sharp_model
from tests.decoding.fakes import FakeModel, sources


def test_a_forced_score_is_the_sum_of_the_tables_log_probabilities() -> None:
    model = FakeModel(1, vocabulary=8)
    source = sources([[5, 6]])
    (found,) = forced_scores(model, source, [[4, 7]], alpha=1.0)
    by_hand = sum(
        model(source, torch.tensor([prefix]))[0, -1].log_softmax(-1)[token].item()
        for prefix, token in [([2], 4), ([2, 4], 7), ([2, 4, 7], 3)]
    )
    assert found.log_prob == pytest.approx(by_hand, abs=1e-6)
    assert found.score == pytest.approx(by_hand / (8 / 6), abs=1e-6)


def test_padding_does_not_change_a_score() -> None:
    model = FakeModel(2, vocabulary=8)
    source = sources([[5, 6], [4]])
    together = forced_scores(model, source, [[4, 7, 7, 5], [6]], alpha=0.6)
    assert together[1].log_prob == pytest.approx(
        forced_scores(model, source[1:], [[6]], alpha=0.6)[0].log_prob, abs=1e-6
    )


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algebra": "phm", "n": 4},
        {"algebra": "quaternion", "norm": "post", "projections": "packed"},
        {"algebra": "phm", "n": 2, "embeddings": "phm", "generator": "phm", "projections": "separate"},
    ],
)
def test_the_transformers_beam_scores_are_its_forced_scores(kit: Kit, settings: dict) -> None:
    size = kit.tokenizers.source.size
    model = sharp_model(size, seed=3, **settings)
    source = pad([[*ids, 3] for ids in kit.tokenizers.source.encode(TEXT[:6])])
    found = beam_search(model, source, beam=4, alpha=0.6, max_lengths=[12, 3, 9, 12, 5, 7], allowed=size, n_best=4)
    for row, hypotheses in zip(source, found, strict=True):
        forced = forced_scores(model, row.expand(len(hypotheses), -1), [h.tokens for h in hypotheses], alpha=0.6)
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in forced], rel=1e-5, abs=1e-5)
