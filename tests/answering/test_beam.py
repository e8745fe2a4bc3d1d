from functools import partial
from itertools import product

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phmctl.answering import beam as beam_module
from phmctl.answering.beam import beam_search, best_continuations, grouped_topk, pad
from phmctl.data import BOS, EOS, PAD, UNK
from phmctl.errors import NonFiniteError
from tests.answering.conftest import TEXT, Kit, sharp_model
from tests.answering.fakes import FakeModel, forced, sources

SOURCE = sources([[4, 5, 6], [5], [6, 4]])


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_beam_wider_than_the_tree_equals_enumeration(seed: int, alpha: float) -> None:
    model = FakeModel(seed, vocabulary=7, end_bias=-2.0)
    outputs = [list(tokens) for length in range(4) for tokens in product(range(4, 7), repeat=length)]
    results = beam_search(model, SOURCE, beam=41, alpha=alpha, max_lengths=[3, 3, 3], allowed=7, n_best=5)
    for row, hypotheses in zip(SOURCE, results, strict=True):
        scored = forced(model, row.expand(len(outputs), -1), outputs, alpha)
        expected = sorted(scored, key=lambda hypothesis: -hypothesis.score)[:5]
        assert [h.tokens for h in hypotheses] == [h.tokens for h in expected]
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected], abs=1e-5)


def beam_search_by_hand(
    model: FakeModel, row: torch.Tensor, *, beam: int, alpha: float, limit: int, allowed: int
) -> list[tuple[float, list[int]]]:
    """Search for one sentence with lists, as the module describes; stop only at `beam` finished outputs."""
    live: list[tuple[float, list[int]]] = [(0.0, [])]
    finished: list[tuple[float, list[int]]] = []
    for length in range(limit + 1):
        candidates = []
        for total, tokens in live:
            logits = model(row[None], torch.tensor([[BOS, *tokens]]))[0, -1]
            scores = torch.log_softmax(logits.double(), -1).tolist()
            words = [EOS] if length == limit else [EOS, *range(4, allowed)]
            candidates += [(total + scores[word], tokens, word) for word in words]
        candidates.sort(key=lambda candidate: -candidate[0])
        finished += [
            (total / ((5 + length + 1) / 6) ** alpha, tokens)
            for total, tokens, word in candidates[:beam]
            if word == EOS
        ]
        live = [(total, [*tokens, word]) for total, tokens, word in candidates[: 2 * beam] if word != EOS][:beam]
        if len(finished) >= beam:
            break
    return sorted(finished, reverse=True)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.5])
@pytest.mark.parametrize("beam", [1, 2, 5])
@pytest.mark.parametrize("end_bias", [-2.0, 1.0, 4.0])
def test_the_search_equals_its_description(beam: int, alpha: float, end_bias: float) -> None:
    for seed in range(3):
        model = FakeModel(seed, vocabulary=20, end_bias=end_bias)
        limits = [seed % 9, 7, (seed * 5) % 11]
        for n_best in (1, beam):
            results = beam_search(model, SOURCE, beam=beam, alpha=alpha, max_lengths=limits, allowed=18, n_best=n_best)
            for row, limit, hypotheses in zip(SOURCE, limits, results, strict=True):
                expected = beam_search_by_hand(model, row, beam=beam, alpha=alpha, limit=limit, allowed=18)[:n_best]
                assert [h.tokens for h in hypotheses] == [tokens for _, tokens in expected]
                assert [h.score for h in hypotheses] == pytest.approx([score for score, _ in expected], abs=1e-4)


rows_of_tokens = st.lists(st.lists(st.integers(4, 19), min_size=1, max_size=6), min_size=1, max_size=7)


@given(seed=st.integers(0, 10_000), rows=rows_of_tokens, beam=st.integers(1, 5))
def test_a_sentence_does_not_depend_on_its_batch(seed: int, rows: list[list[int]], beam: int) -> None:
    model = FakeModel(seed, vocabulary=20)
    limits = [len(row) + 3 for row in rows]
    together = beam_search(model, sources(rows), beam=beam, alpha=0.6, max_lengths=limits, allowed=20, n_best=beam)
    for row, limit, hypotheses in zip(rows, limits, together, strict=True):
        alone = beam_search(model, sources([row]), beam=beam, alpha=0.6, max_lengths=[limit], allowed=20, n_best=beam)
        assert alone == [hypotheses]


@given(seed=st.integers(0, 10_000), beam=st.integers(1, 4))
def test_rare_checks_for_ended_sentences_change_nothing(seed: int, beam: int) -> None:
    model = FakeModel(seed, vocabulary=20, end_bias=2.0)
    search = partial(beam_search, model, SOURCE, beam=beam, alpha=0.6, max_lengths=[9, 4, 7], allowed=20, n_best=beam)
    expected = search()
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(beam_module._STEPS_BETWEEN_CHECKS, "cpu", 4)
        assert search() == expected


def test_a_search_stops_if_no_prefix_can_improve() -> None:
    model = FakeModel(9, vocabulary=20, end_bias=40.0)
    results = beam_search(model, SOURCE, beam=5, alpha=0.6, max_lengths=[50] * 3, allowed=20)
    assert [best.tokens for (best,) in results] == [[], [], []]
    assert model.steps == 1


def test_nan_is_an_error() -> None:
    model = FakeModel(11, vocabulary=9)
    model.table.fill_(torch.nan)
    with pytest.raises(NonFiniteError):
        beam_search(model, SOURCE, beam=2, alpha=0.6, max_lengths=[4] * 3, allowed=9)


# ------------------------------------------------------------------------------------------------ scores and top k


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"algebra": "phm", "n": 4},
        {"algebra": "quaternion", "norm": "post", "projections": "packed"},
        {"algebra": "phm", "n": 2, "embeddings": "phm", "generator": "phm", "projections": "separate"},
        {"algebra": "phm", "n": 4, "compose_layers": "bilinear", "compose_heads": "bilinear", "encoder_layers": 2},
    ],
)
def test_scores_of_the_transformer_equal_forced_decoding(kit: Kit, settings: dict) -> None:
    size = kit.tokenizers.source.size
    model = sharp_model(size, seed=3, **settings)
    source = pad([[*ids, 3] for ids in kit.tokenizers.source.encode(TEXT[:6])])
    results = beam_search(model, source, beam=4, alpha=0.6, max_lengths=[12, 3, 9, 12, 5, 7], allowed=size, n_best=4)
    for row, hypotheses in zip(source, results, strict=True):
        expected = forced(model, row.expand(len(hypotheses), -1), [h.tokens for h in hypotheses], 0.6)
        assert [h.score for h in hypotheses] == pytest.approx([h.score for h in expected], rel=1e-5, abs=1e-5)


@given(rows=st.integers(1, 5), columns=st.integers(1, 300), count=st.integers(1, 12), seed=st.integers(0, 999))
def test_grouped_topk_equals_topk(rows: int, columns: int, count: int, seed: int) -> None:
    scores = torch.randperm(rows * columns, generator=torch.Generator().manual_seed(seed)).view(rows, columns).float()
    count = min(count, columns)
    values, ids = grouped_topk(scores, count)
    expected = scores.topk(count)
    assert torch.equal(values, expected.values)
    assert torch.equal(ids, expected.indices)


def test_forbidden_tokens_keep_their_share_of_the_softmax() -> None:
    logits = torch.tensor([[1.0, 5.0, 2.0, 0.0, 3.0, -1.0, 9.0]])
    assert {PAD, UNK, BOS, EOS} == {0, 1, 2, 3}
    values, ids, end = best_continuations(logits, 2, allowed=6)
    log_probs = logits.log_softmax(-1)
    assert ids.tolist() == [[4, EOS]]
    assert values[0].tolist() == pytest.approx(log_probs[0, [4, EOS]].tolist())
    assert end.tolist() == pytest.approx(log_probs[:, EOS].tolist())


def test_rows_do_not_depend_on_the_batch() -> None:
    logits = torch.randn(300, 50, generator=torch.Generator().manual_seed(1))
    together = best_continuations(logits, 4, allowed=48)
    alone = [best_continuations(row[None], 4, allowed=48) for row in logits]
    for column, rows in zip(together, zip(*alone, strict=True), strict=True):
        assert torch.equal(column, torch.cat(rows))


def test_ended_sentences_leave_the_batch() -> None:
    model = FakeModel(8, vocabulary=20, end_bias=-60.0)
    beam_search(model, SOURCE, beam=2, alpha=0.6, max_lengths=[9, 1, 4], allowed=20)
    assert model.steps == 10
    # A sentence of limit L takes L + 1 steps: the first with one empty prefix, the others with the whole beam.
    assert model.rows == 3 + 2 * (9 + 1 + 4)
