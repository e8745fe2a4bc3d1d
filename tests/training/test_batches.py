"""Which batches a step has, which process computes what of them, and dropout's random numbers."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.training.trainer import BatchStream, Part, parts_of, pieces_of, seed_dropout
from tests.training.fake import BATCHES_PER_EPOCH, FakeTask


@given(before=st.integers(0, 20), after=st.integers(1, 10))
@settings(max_examples=25, deadline=None)
def test_a_stream_goes_on_from_any_position(before: int, after: int) -> None:
    whole = BatchStream(FakeTask())
    whole.next(before)
    resumed = BatchStream(FakeTask(), whole.epoch, whole.position)
    assert [rows.tolist() for rows in resumed.next(after)] == [rows.tolist() for rows in whole.next(after)]
    assert (resumed.epoch, resumed.position) == (whole.epoch, whole.position)


@pytest.mark.parametrize(("count", "where"), [(0, (0, 0)), (7, (0, 7)), (8, (1, 1)), (15, (2, 1))])
def test_epoch_and_position_count(count: int, where: tuple[int, int]) -> None:
    assert BATCHES_PER_EPOCH == 7
    stream = BatchStream(FakeTask())
    stream.next(count)
    assert (stream.epoch, stream.position) == where


def _plan(*sizes: int) -> list[np.ndarray]:
    return list(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9), processes=st.integers(1, 9))
def test_every_row_counts_once_and_every_process_has_something(sizes: list[int], processes: int) -> None:
    shares = [parts_of(_plan(*sizes), rank, processes) for rank in range(processes)]
    counted = [row for share in shares for part in share if part.counts for row in part.rows.tolist()]
    assert sorted(counted) == list(range(sum(sizes)))
    assert all(share and all(len(part.rows) for part in share) for share in shares)


@given(micro_batches=st.integers(1, 12), processes=st.integers(1, 12))
def test_pieces_divide_evenly(micro_batches: int, processes: int) -> None:
    pieces = pieces_of(micro_batches, processes)
    assert pieces == 1 if micro_batches >= processes else (micro_batches * pieces) % processes == 0


def test_whole_micro_batches_go_round() -> None:
    shares = [parts_of(_plan(3, 3, 3, 3, 3), rank, 2) for rank in range(2)]
    assert [[part.micro_batch for part in share] for share in shares] == [[0, 2, 4], [1, 3]]


@pytest.mark.parametrize("rank", range(2))
def test_a_micro_batch_is_divided_in_turns_as_its_rows_are_sorted_by_length(rank: int) -> None:
    (part,) = parts_of(_plan(7), rank, 2)
    assert (part.micro_batch, part.piece, part.rows.tolist()) == (0, rank, list(range(rank, 7, 2)))


def _draw(seed: int, step: int, micro_batch: int, piece: int = 0) -> tuple[float, ...]:
    seed_dropout(torch.device("cpu"), seed, step, Part(micro_batch, piece, np.arange(1)))
    return tuple(torch.rand(4).tolist())


def test_dropout_depends_on_seed_step_micro_batch_and_piece_alone() -> None:
    first = _draw(1, 7, 2)
    torch.rand(13)
    assert _draw(1, 7, 2) == first
    others = [(2, 7, 2), (1, 8, 2), (1, 7, 3), (1, 2, 7), (1, 7, 2, 1)]
    assert len({first, *(_draw(*other) for other in others)}) == 6
