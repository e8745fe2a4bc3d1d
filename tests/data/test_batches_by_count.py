"""Batches by count."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.data.arrow import Ragged
from phmctl.data.batches import EncodedTexts, collate, encode_texts, lengths_of, plan_by_count, real_token_share
from phmctl.data.card import Cleaning
from phmctl.data.special import EOS, PAD
from phmctl.data.tokenizer import train_tokenizer


def ragged(rows):
    values = np.array([token for row in rows for token in row], np.int32)
    return Ragged([(values, np.cumsum([0, *map(len, rows)]))])


def pairs(first, second=None, labels=None):
    numbers = np.array(labels or [0] * len(first), np.int64)
    return EncodedTexts((ragged(first), *([] if second is None else [ragged(second)])), numbers)


def test_a_batch_is_padded_behind_and_has_no_boundaries():
    batch = collate(pairs([[5, 6, 7], [8], []], [[9], [10, 11], [12]], [2, 0, 1]), [2, 0])
    assert batch.source.tolist() == [[EOS, PAD, PAD], [5, 6, 7]]
    assert batch.target.tolist() == [[12], [9]]
    assert (batch.labels.tolist(), batch.indices.tolist(), batch.target_tokens) == ([1, 2], [2, 0], 2)
    assert batch.source.dtype == batch.labels.dtype == torch.int64
    assert batch.to("cpu") is batch


def test_one_text():
    split = pairs([[], [5, 6]])
    assert len(collate(split, [0]).sides) == 1
    assert [side.tolist() for side in lengths_of(split)] == [[1, 2]]


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 30)), max_size=300),
    st.integers(1, 40),
    st.integers(0, 3),
    st.booleans(),
)
def test_every_row_stands_in_one_batch(sizes, batch_size, epoch, shuffle):
    sides = tuple(np.array(column, np.int64) for column in zip(*sizes, strict=True)) or (np.empty(0, np.int64),)
    batches = plan_by_count(sides, batch_size, seed=1, epoch=epoch, shuffle=shuffle)
    assert sorted(row for batch in batches for row in batch.tolist()) == list(range(len(sizes)))
    assert all(0 < len(batch) <= batch_size for batch in batches)
    again = plan_by_count(sides, batch_size, seed=1, epoch=epoch, shuffle=shuffle)
    assert [batch.tolist() for batch in batches] == [batch.tolist() for batch in again]


def test_epochs_and_seeds_differ_and_without_shuffling_nothing_does():
    sides = (np.arange(1, 501) % 37 + 1,)

    def plans(**settings):
        return [batch.tolist() for batch in plan_by_count(sides, 16, **settings)]

    assert plans(seed=1, epoch=0) != plans(seed=1, epoch=1)
    assert plans(seed=1, epoch=0) != plans(seed=2, epoch=0)
    ordered = plans(seed=1, epoch=0, shuffle=False)
    assert ordered == plans(seed=9, epoch=9, shuffle=False)
    lengths = [sides[0][row] for batch in ordered for row in batch]
    assert lengths == sorted(lengths)


def test_similar_lengths_share_a_batch():
    lengths = np.random.default_rng(0).integers(2, 50, 20_000)
    sorted_share = real_token_share(plan_by_count((lengths,), 64, seed=1, epoch=0), (lengths,))
    order = np.random.default_rng(1).permutation(len(lengths))
    at_random = [order[start : start + 64] for start in range(0, len(order), 64)]
    assert sorted_share > 0.95
    assert real_token_share(at_random, (lengths,)) < 0.6


def test_the_share_of_real_tokens_counts_both_texts():
    assert real_token_share([np.array([0, 1])], (np.array([1, 3]), np.array([2, 2]))) == pytest.approx(8 / 10)
    assert real_token_share([], (np.empty(0, np.int64),)) == 1.0


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
