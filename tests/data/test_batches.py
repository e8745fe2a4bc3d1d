from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.data.arrow import Ragged
from phmctl.data.batches import collate, cost_of, lengths_of, plan_by_tokens, real_token_share
from phmctl.data.special import BOS, EOS, PAD
from phmctl.errors import DataError

LENGTHS = st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=200)


def ragged(rows, chunk=None):
    """Rows as Ragged, in chunks of so many rows."""
    size = chunk or max(len(rows), 1)
    parts = [rows[i : i + size] for i in range(0, len(rows), size)]
    return Ragged(
        [(np.array([*chain(*part)], np.int32), np.cumsum([0, *map(len, part)], dtype=np.int32)) for part in parts]
    )


def captions(count=20_000, seed=0):
    """Lengths like those of image captions: about 15 tokens a side, the sides alike."""
    generator = np.random.default_rng(seed)
    source = generator.gamma(9, 1.65, count).astype(int) + 1
    target = np.maximum(1, (source * generator.normal(0.97, 0.15, count)).astype(int))
    return source + 1, target + 1  # with the end of sentence


def split_of(source, target):
    return SimpleNamespace(sides=(source, target), labels=None)


@settings(max_examples=150, deadline=None)
@given(LENGTHS, st.integers(61, 400), st.integers(0, 5), st.integers(0, 5), st.booleans())
def test_no_batch_exceeds_the_budget_and_no_row_is_lost(lengths, budget, seed, epoch, shuffle):
    source = [one for one, _ in lengths]
    target = [other for _, other in lengths]
    plan = plan_by_tokens(
        (np.array(source, int) + 1, np.array(target, int) + 1), budget, seed=seed, epoch=epoch, shuffle=shuffle
    )
    assert sorted(int(row) for rows in plan for row in rows) == list(range(len(lengths)))
    for rows in plan:
        assert len(rows) * max(max(source[row], target[row]) + 1 for row in rows) <= budget


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.integers(4, 99), max_size=9), min_size=1, max_size=30), st.integers(1, 40), st.data())
def test_a_batch_holds_the_rows_tokens(rows, chunk, data):
    picked = data.draw(st.lists(st.sampled_from(range(len(rows))), min_size=1, max_size=20))
    split = split_of(ragged(rows, chunk), ragged(rows[::-1], chunk))
    batch = collate(split, picked)
    assert batch.indices.tolist() == picked
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


def test_most_positions_are_real():
    source, target = captions()
    plan = plan_by_tokens((source, target), 4096, seed=1, epoch=0)
    assert real_token_share(plan, (source, target)) > 0.95
    rows = np.arange(len(source))
    naive = [rows[i : i + 160] for i in range(0, len(rows), 160)]
    assert real_token_share(naive, (source, target)) < 0.6


def test_the_share_of_real_positions_by_hand():
    assert real_token_share([np.array([0, 1])], (np.array([2, 4]), np.array([4, 4]))) == (2 + 4 + 4 + 4) / 16
    assert real_token_share([], (np.empty(0, int), np.empty(0, int))) == 1.0


def test_plans_follow_seed_and_epoch():
    source, target = captions(5000)

    def plan(seed, epoch, shuffle=True):
        return [
            rows.tolist() for rows in plan_by_tokens((source, target), 4096, seed=seed, epoch=epoch, shuffle=shuffle)
        ]

    def companies(batches):
        return {frozenset(rows) for rows in batches}

    assert plan(1, 0) == plan(1, 0)
    assert len(companies(plan(1, 0)) & companies(plan(1, 1))) <= 1
    assert len(companies(plan(1, 0)) & companies(plan(2, 0))) <= 1
    assert plan(1, 0, shuffle=False) == plan(2, 3, shuffle=False)


def test_batches_come_in_mixed_order():
    source, target = captions(5000)
    cost = cost_of((source, target))
    longest = [int(cost[rows].max()) for rows in plan_by_tokens((source, target), 4096, seed=1, epoch=0)]
    assert longest != sorted(longest)
    ordered = [int(cost[rows].max()) for rows in plan_by_tokens((source, target), 4096, seed=1, epoch=0, shuffle=False)]
    assert ordered == sorted(ordered)


def test_a_row_above_the_budget_is_named():
    assert cost_of(([4, 10], [5, 3])).tolist() == [5, 10]
    with pytest.raises(DataError, match="row 2 has 10 tokens, more than a batch of 9 holds"):
        plan_by_tokens(([4, 10], [5, 3]), 9, seed=1, epoch=0)
    assert len(plan_by_tokens(([4, 10], [5, 3]), 10, seed=1, epoch=0)) == 2


def test_a_million_rows_are_planned_quickly():
    import time

    source, target = captions(1_000_000)
    begin = time.perf_counter()
    plan_by_tokens((source, target), 4096, seed=1, epoch=0)
    assert time.perf_counter() - begin < 5
