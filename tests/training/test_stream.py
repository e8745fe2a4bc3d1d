"""The endless stream of batches."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.training.stream import BatchStream
from tests.training.fake import BATCHES_PER_EPOCH, FakeTask


def _sizes(stream: BatchStream, count: int) -> list[list[int]]:
    return [rows.tolist() for rows in stream.take(count)]


@given(before=st.integers(0, 20), after=st.integers(1, 10))
@settings(max_examples=25, deadline=None)
def test_a_stream_goes_on_from_any_position(before: int, after: int) -> None:
    whole = BatchStream(FakeTask())
    whole.take(before)
    resumed = BatchStream(FakeTask(), whole.epoch, whole.position)
    assert _sizes(resumed, after) == _sizes(whole, after)
    assert (resumed.epoch, resumed.position) == (whole.epoch, whole.position)


@pytest.mark.parametrize(("taken", "where"), [(0, (0, 0)), (7, (0, 7)), (8, (1, 1)), (15, (2, 1))])
def test_epoch_and_position_count(taken: int, where: tuple[int, int]) -> None:
    assert BATCHES_PER_EPOCH == 7
    stream = BatchStream(FakeTask())
    stream.take(taken)
    assert (stream.epoch, stream.position) == where


def test_one_step_may_span_epochs() -> None:
    stream = BatchStream(FakeTask(), 0, 6)
    assert _sizes(stream, 2) == _sizes(BatchStream(FakeTask(), 0, 6), 1) + _sizes(BatchStream(FakeTask(), 1, 0), 1)
