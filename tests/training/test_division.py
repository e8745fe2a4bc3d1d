"""Which process takes what of a step."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.training.division import parts_of, pieces_of


def _plan(*sizes: int) -> list[np.ndarray]:
    return list(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9), processes=st.integers(1, 9), in_step=st.booleans())
def test_every_row_counts_once_and_every_process_has_something(sizes, processes, in_step) -> None:
    plan = _plan(*sizes)
    shares = [parts_of(plan, rank, processes, in_step=in_step) for rank in range(processes)]
    counted = [row for share in shares for part in share if part.counts for row in part.rows.tolist()]
    assert sorted(counted) == list(range(sum(sizes)))
    assert all(shares)
    assert all(len(part.rows) for share in shares for part in share)
    if in_step:
        assert len({len(share) for share in shares}) == 1


@given(micro_batches=st.integers(1, 12), processes=st.integers(1, 12))
def test_pieces_divide_evenly(micro_batches: int, processes: int) -> None:
    pieces = pieces_of(micro_batches, processes)
    if micro_batches >= processes:
        assert pieces == 1
    else:
        assert (micro_batches * pieces) % processes == 0


def test_whole_micro_batches_go_round() -> None:
    shares = [parts_of(_plan(3, 3, 3, 3, 3), rank, 2) for rank in range(2)]
    assert [[part.micro_batch for part in share] for share in shares] == [[0, 2, 4], [1, 3]]
    assert [part.counts for part in parts_of(_plan(3, 3, 3), 1, 2, in_step=True)] == [False, True]


@pytest.mark.parametrize("rank", range(2))
def test_a_micro_batch_is_divided_in_turns_as_its_rows_are_sorted_by_length(rank: int) -> None:
    (part,) = parts_of(_plan(7), rank, 2)
    assert (part.micro_batch, part.piece, part.rows.tolist()) == (0, rank, list(range(rank, 7, 2)))
