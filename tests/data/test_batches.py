import time
from functools import partial
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phmctl.data import BOS, EOS, PAD
from phmctl.data.batches import (
    EncodedTexts,
    RandomNumbers,
    collate,
    encode_texts,
    lengths_of,
    plan_by_count,
    plan_by_tokens,
)
from phmctl.data.card import Cleaning
from phmctl.data.prepared import Ragged
from phmctl.data.tokenizer import train_tokenizer
from phmctl.errors import DataError

LENGTHS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=200)


def ragged(rows, chunk=None):
    size = chunk or max(len(rows), 1)
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return Ragged(
        [(np.array([*chain(*part)], np.int32), np.cumsum([0, *map(len, part)], dtype=np.int32)) for part in parts]
    )


def captions(count=20_000, seed=0):
    """Return lengths like those of image captions: about 15 tokens per side, similar on both sides."""
    generator = np.random.default_rng(seed)
    source = generator.gamma(9, 1.65, count).astype(int) + 1
    target = np.maximum(1, (source * generator.normal(0.97, 0.15, count)).astype(int))
    return source + 1, target + 1  # with the end of sentence


def split_of(source, target):
    return SimpleNamespace(sides=(source, target), labels=None)


@given(LENGTHS, st.integers(61, 400), st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_no_batch_exceeds_the_budget_and_no_row_is_lost(lengths, budget, seed, epoch, shuffle):
    source = [length for length, _ in lengths]
    target = [length for _, length in lengths]
    plan = plan_by_tokens(
        (np.array(source, int) + 1, np.array(target, int) + 1), budget, seed=seed, epoch=epoch, shuffle=shuffle
    )
    assert sorted(int(row) for rows in plan for row in rows) == list(range(len(lengths)))
    for rows in plan:
        assert len(rows) * max(max(source[row], target[row]) + 1 for row in rows) <= budget


@given(st.lists(st.lists(st.integers(4, 99), max_size=9), min_size=1, max_size=30), st.integers(1, 40), st.data())
def test_a_batch_holds_the_rows_tokens(rows, chunk, data):
    picked = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, max_size=20))
    split = split_of(ragged(rows, chunk), ragged(rows[::-1], chunk))
    batch = collate(split, picked)
    assert batch.source.dtype == batch.target.dtype == torch.int64
    assert batch.source.shape[1] == max(len(rows[row]) for row in picked) + 1
    assert batch.target_tokens == int((batch.target[:, 1:] != PAD).sum())
    for number, row in enumerate(picked):
        source, target = rows[row], rows[::-1][row]
        assert batch.source[number].tolist()[: len(source) + 1] == [*source, EOS]
        assert batch.target[number].tolist()[: len(target) + 2] == [BOS, *target, EOS]
        assert set(batch.source[number].tolist()[len(source) + 1 :]) <= {PAD}
        assert set(batch.target[number].tolist()[len(target) + 2 :]) <= {PAD}


def test_a_small_batch_by_hand():
    split = split_of(ragged([[5, 6], [7]]), ragged([[8], [9, 10, 11]]))
    assert [side.tolist() for side in lengths_of(split)] == [[3, 2], [2, 4]]
    batch = collate(split, [1, 0])
    assert batch.source.tolist() == [[7, 3, 0], [5, 6, 3]]
    assert batch.target.tolist() == [[2, 9, 10, 11, 3], [2, 8, 3, 0, 0]]
    assert batch.target_tokens == 6
    assert batch.to("cpu") is batch


def real_token_share(plan, lengths) -> float:
    """The share of all sides' positions in a plan's batches that are not padding."""
    positions = sum(len(rows) * int(side[rows].max()) for side in lengths for rows in plan)
    return sum(int(side.sum()) for side in lengths) / positions


def test_most_positions_are_real():
    source, target = captions()
    plan = plan_by_tokens((source, target), 4096, seed=1, epoch=0)
    assert real_token_share(plan, (source, target)) > 0.95
    rows = np.arange(len(source))
    naive = [rows[i : i + 160] for i in range(0, len(rows), 160)]
    assert real_token_share(naive, (source, target)) < 0.6


@pytest.mark.parametrize(
    ("planner", "cost"),
    [
        (partial(plan_by_tokens, batch_tokens=4096), np.maximum(*captions(5000))),
        (partial(plan_by_count, batch_size=64), np.add(*captions(5000))),
    ],
    ids=["by tokens", "by count"],
)
def test_seed_and_epoch_matter_only_with_shuffling(planner, cost):
    def plan(seed, epoch, shuffle=True):
        return planner(captions(5000), seed=seed, epoch=epoch, shuffle=shuffle)

    def as_sets(batches):
        return {frozenset(rows.tolist()) for rows in batches}

    shuffled, ordered = plan(1, 0), plan(1, 0, shuffle=False)
    assert list(map(list, shuffled)) == list(map(list, plan(1, 0)))
    assert len(as_sets(shuffled) & as_sets(plan(1, 1))) <= 1
    assert len(as_sets(shuffled) & as_sets(plan(2, 0))) <= 1
    assert list(map(list, ordered)) == list(map(list, plan(2, 3, shuffle=False)))
    for batches, is_sorted in ((shuffled, False), (ordered, True)):
        longest = [cost[rows].max() for rows in batches]
        assert (longest == sorted(longest)) is is_sorted


def test_a_row_above_the_budget_is_named():
    with pytest.raises(DataError, match=r"row 2 .*10 .*\b9\b"):
        plan_by_tokens(([4, 10], [5, 3]), 9, seed=1, epoch=0)
    assert len(plan_by_tokens(([4, 10], [5, 3]), 10, seed=1, epoch=0)) == 2


def test_a_million_rows_are_planned_quickly():
    source, target = captions(1_000_000)
    begin = time.process_time()
    plan_by_tokens((source, target), 4096, seed=1, epoch=0)
    assert time.process_time() - begin < 5


def numbered(first, second=None, labels=None):
    numbers = np.array(labels or [0] * len(first), np.int64)
    return EncodedTexts((ragged(first), *([] if second is None else [ragged(second)])), numbers)


def test_a_batch_is_padded_behind_and_has_no_boundaries():
    batch = collate(numbered([[5, 6, 7], [8], []], [[9], [10, 11], [12]], [2, 0, 1]), [2, 0])
    assert batch.source.tolist() == [[EOS, PAD, PAD], [5, 6, 7]]
    assert batch.target.tolist() == [[12], [9]]
    assert (batch.labels.tolist(), batch.target_tokens) == ([1, 2], 2)
    assert batch.source.dtype == batch.labels.dtype == torch.int64
    single_texts = numbered([[], [5, 6]])
    assert len(collate(single_texts, [0]).sides) == 1
    assert [side.tolist() for side in lengths_of(single_texts)] == [[1, 2]]


def test_padding_to_a_multiple_makes_few_shapes() -> None:
    """As on a GPU: S, and T without BOS, are multiples of 8, and nothing else changes."""
    lengths = captions(2000)
    split = split_of(*(ragged([[5] * int(length - 1) for length in side]) for side in lengths))
    batches = [collate(split, rows) for rows in plan_by_tokens(lengths, 512, seed=1, epoch=0)]
    padded = [batch.padded(8) for batch in batches]
    for batch, wide in zip(batches, padded, strict=True):
        assert (wide.source.shape[1] % 8, wide.target[:, 1:].shape[1] % 8) == (0, 0)
        for narrow, side in zip(batch.sides, wide.sides, strict=True):
            assert torch.equal(side[:, : narrow.shape[1]], narrow)
            assert 0 <= side.shape[1] - narrow.shape[1] < 8
            assert not side[:, narrow.shape[1] :].any()
    shapes, wide_shapes = (len({tuple(side.shape for side in batch.sides) for batch in b}) for b in (batches, padded))
    assert wide_shapes < 0.6 * shapes
    labelled = collate(EncodedTexts((ragged([[5] * 9, [5]]),), np.zeros(2, np.int64)), [0, 1])
    assert labelled.padded(8).source.shape == labelled.to("meta").source.shape == (2, 16)


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), max_size=300),
    st.integers(1, 40),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_row_is_in_one_batch(sizes, batch_size, epoch, shuffle):
    sides = tuple(np.array(column, np.int64) for column in zip(*sizes, strict=True)) or (np.empty(0, np.int64),)
    batches = plan_by_count(sides, batch_size, seed=1, epoch=epoch, shuffle=shuffle)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(sizes)))
    assert all(0 < len(batch) <= batch_size for batch in batches)
    again = plan_by_count(sides, batch_size, seed=1, epoch=epoch, shuffle=shuffle)
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in again]


def test_similar_lengths_share_a_batch():
    lengths = np.random.default_rng(0).integers(2, 50, 20_000)
    sorted_share = real_token_share(plan_by_count((lengths,), 64, seed=1, epoch=0), (lengths,))
    order = np.random.default_rng(1).permutation(len(lengths))
    at_random = [order[start : start + 64] for start in range(0, len(order), 64)]
    assert sorted_share > 0.95
    assert real_token_share(at_random, (lengths,)) < 0.6


@pytest.mark.parametrize(("keep", "kept"), [("start", "a b"), ("end", "c d")])
def test_new_texts_are_cleaned_and_cut(keep, kept):
    tokenizer = train_tokenizer(["a b c d"], "word", 20)
    cleaning = Cleaning(keep=keep, entities="decode")
    texts = encode_texts([("  a b c d ", "a"), ("", "&amp;")], tokenizer, cleaning, 2)
    assert tokenizer.decode(texts.sides[0][0]) == kept
    assert collate(texts, [0, 1]).source.tolist()[1] == [EOS, PAD]
    assert texts.sides[1].lengths.tolist() == [1, 1]
    empty = encode_texts([], tokenizer, cleaning, 2)
    assert len(empty.sides[0]) == 0


def test_a_stream_is_pinned() -> None:
    """A change of these numbers changes the order of every run and needs a new `ORDER` in the state."""
    assert RandomNumbers(1, 0).permutation(10).tolist() == [3, 5, 2, 9, 7, 0, 8, 6, 1, 4]
    assert RandomNumbers(1, 2, 3, 4, 1).words(1).tolist() == [479415053854723494]


def test_seed_epoch_and_place_make_a_stream() -> None:
    streams = [(1, 2), (2, 1), (2**63 - 1, 2), (1, 2, 1), (1, 2, 0, 1), (1, 2, 0, 0, 1), (1, 3)]
    drawn = [RandomNumbers(*seeds).words(50).tolist() for seeds in streams]
    assert len({word for words in drawn for word in words}) == 50 * len(streams)


def test_shares_and_places_are_even() -> None:
    numbers = RandomNumbers(3, 0)
    assert abs(numbers.chosen(100_000, 0.15).mean() - 0.15) < 0.004
    places = np.array([RandomNumbers(seed, 0).permutation(5)[0] for seed in range(5000)])
    assert np.abs(np.bincount(places, minlength=5) - 1000).max() < 120
    assert sorted(numbers.shuffled("abcdef")) == list("abcdef")
