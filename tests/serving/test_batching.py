import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.errors import BusyError
from phmctl.serving.batching import Batcher, BatchLimits

SECONDS = 10  # a test that hangs is one that fails


class BadItemError(Exception):
    pass


class Recorder:
    """Answers (key, item) to an item, fails where a negative one is in the batch, and keeps what it was asked."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []

    def __call__(self, key: str, items: Sequence[int]) -> list[tuple[str, int]]:
        self.batches.append((key, list(items)))
        if any(item < 0 for item in items):
            raise BadItemError(f"{key}: {[item for item in items if item < 0]}")
        return [(key, item) for item in items]


class Gate(Recorder):
    """A recorder that answers nothing until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, key: str, items: Sequence[int]) -> list[tuple[str, int]]:
        self.entered.set()
        assert self.open.wait(SECONDS)
        return super().__call__(key, items)


def held(limits: BatchLimits) -> tuple[Gate, Batcher]:
    """A batcher whose only worker is busy with item 0, and what holds it."""
    gate = Gate()
    batcher = Batcher(gate, limits)
    batcher.submit("busy", [0], [1])
    assert gate.entered.wait(SECONDS)
    return gate, batcher


@dataclass(frozen=True)
class Ask:
    key: str
    items: tuple[int, ...]
    cancel: bool


asks = st.builds(
    Ask,
    key=st.sampled_from("abc"),
    items=st.lists(st.integers(-1, 50), max_size=6).map(tuple),
    cancel=st.sampled_from([False, False, False, True]),
)


@settings(max_examples=60, deadline=None)
@given(
    clients=st.lists(st.lists(asks, max_size=8), min_size=1, max_size=4),
    workers=st.integers(1, 3),
    size=st.integers(1, 8),
    cost=st.integers(1, 40),
)
def test_every_request_gets_its_own_answers_whatever_happens_to_others(clients, workers, size, cost) -> None:
    recorder = Recorder()
    batcher: Batcher = Batcher(recorder, BatchLimits(items=size, cost=cost, queue=10_000, wait=0.0005), workers=workers)

    def client(requests: Sequence[Ask]) -> None:
        futures = [batcher.submit(ask.key, ask.items, [abs(item) for item in ask.items]) for ask in requests]
        cancelled = [ask.cancel and future.cancel() for ask, future in zip(requests, futures, strict=True)]
        for ask, future, gone in zip(requests, futures, cancelled, strict=True):
            if gone:
                with pytest.raises(CancelledError):
                    future.result(SECONDS)
            elif -1 in ask.items:
                with pytest.raises(BadItemError, match=rf"{ask.key}: \[-1\]"):
                    future.result(SECONDS)
            else:
                assert future.result(SECONDS) == [(ask.key, item) for item in ask.items]

    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(client, clients))
    assert batcher.close(SECONDS) == 0
    assert not batcher.alive()
    assert batcher.queued == batcher.running == 0
    for _, items in recorder.batches:
        assert len(items) <= size
        assert len(items) == 1 or sum(map(abs, items)) <= cost


def test_a_ticket_of_several_batches_wakes_as_many_idle_workers() -> None:
    together = threading.Barrier(4)

    def answer(key: str, items: Sequence[int]) -> Sequence[int]:
        together.wait(SECONDS)  # breaks unless all four workers are here
        return items

    batcher: Batcher = Batcher(answer, BatchLimits(items=32), workers=4)
    assert batcher.submit("x", list(range(128)), [1] * 128).result(2 * SECONDS) == list(range(128))
    batcher.close(SECONDS)


def test_what_waits_is_answered_together_by_key_and_in_order() -> None:
    gate, batcher = held(BatchLimits(items=3))
    futures = [batcher.submit(key, [item], [1]) for item, key in enumerate("xyxxx", start=1)]
    gate.open.set()
    assert [future.result(SECONDS) for future in futures] == [[(key, n)] for n, key in enumerate("xyxxx", start=1)]
    assert gate.batches == [("busy", [0]), ("x", [1, 3, 4]), ("y", [2]), ("x", [5])]
    batcher.close()


def test_the_cost_of_a_batch_is_limited_but_one_item_always_goes() -> None:
    gate, batcher = held(BatchLimits(cost=10))
    futures = [batcher.submit("x", [item], [item]) for item in (4, 6, 1, 99, 2)]
    gate.open.set()
    for future in futures:
        future.result(SECONDS)
    assert [items for _, items in gate.batches[1:]] == [[4, 6], [1], [99], [2]]
    batcher.close()


def test_a_full_queue_refuses_with_a_time_and_takes_what_fits() -> None:
    gate, batcher = held(BatchLimits(queue=3))
    batcher.submit("x", [1, 2], [1, 1])
    with pytest.raises(BusyError, match="2 of 3 wait, and 2 more") as caught:
        batcher.submit("x", [3, 4], [1, 1])
    assert 1 <= caught.value.retry_after <= 60
    last = batcher.submit("x", [5], [1])
    gate.open.set()
    assert last.result(SECONDS) == [("x", 5)]
    batcher.close(SECONDS)


def test_cancelled_requests_leave_the_queue_at_once_and_are_never_begun() -> None:
    gate, batcher = held(BatchLimits(queue=4))
    gone = batcher.submit("x", [1, 2, 3], [1, 1, 1])
    kept = batcher.submit("x", [4], [1])
    assert batcher.queued == 4
    assert gone.cancel()
    assert batcher.queued == 1
    assert batcher.counts.dropped == 3
    batcher.submit("x", [5, 6, 7], [1, 1, 1])
    gate.open.set()
    assert kept.result(SECONDS) == [("x", 4)]
    batcher.close(SECONDS)
    assert [items for _, items in gate.batches] == [[0], [4, 5, 6, 7]]


def test_a_failure_is_the_items_own() -> None:
    gate, batcher = held(BatchLimits())
    futures = [batcher.submit("x", [item], [1]) for item in (1, 2, -1, 4)]
    gate.open.set()
    for future, item in zip(futures, (1, 2, -1, 4), strict=True):
        if item < 0:
            with pytest.raises(BadItemError):
                future.result(SECONDS)
        else:
            assert future.result(SECONDS) == [("x", item)]
    assert [items for _, items in gate.batches[1:]] == [[1, 2, -1, 4], [1, 2], [-1, 4], [-1], [4]]
    batcher.close(SECONDS)
    assert (batcher.counts.answered, batcher.counts.failed) == (4, 1)


def test_what_is_cancelled_while_its_batch_fails_is_not_tried_again() -> None:
    gate, batcher = held(BatchLimits())
    tried: list[list[int]] = []

    def answer(key: str, items: Sequence[int]) -> list[int]:
        tried.append(list(items))
        if len(items) > 1:
            futures[1].cancel()
            raise BadItemError
        return list(items)

    batcher._answer = answer
    futures = [batcher.submit("x", [item], [1]) for item in (1, 2, 3)]
    gate.open.set()
    assert [futures[0].result(SECONDS), futures[2].result(SECONDS)] == [[1], [3]]
    assert tried == [[1, 2, 3], [1], [3]]
    batcher.close(SECONDS)


def test_too_few_answers_are_a_failure_not_a_shift() -> None:
    batcher: Batcher = Batcher(lambda key, items: [])
    with pytest.raises(RuntimeError, match="0 answers came to 1 items"):
        batcher.submit("x", [1], [1]).result(SECONDS)
    batcher.close()


def test_a_lone_client_does_not_wait_for_company() -> None:
    batcher: Batcher = Batcher(Recorder(), BatchLimits(wait=SECONDS))
    began = time.monotonic()
    for item in range(5):
        batcher.submit("x", [item], [1]).result(SECONDS)
    assert time.monotonic() - began < SECONDS / 2
    batcher.close()


def test_after_a_large_batch_the_next_waits_for_its_like() -> None:
    gate, batcher = held(BatchLimits(wait=SECONDS))
    first = [batcher.submit("x", [item], [1]) for item in range(3)]
    gate.open.set()
    for future in first:
        future.result(SECONDS)
    second = []
    for item in range(3, 6):
        second.append(batcher.submit("x", [item], [1]))
        time.sleep(0.01)
    for future in second:
        future.result(SECONDS)
    assert [items for _, items in gate.batches[1:]] == [[0, 1, 2], [3, 4, 5]]
    batcher.close()


def test_a_batch_waits_for_others_no_longer_than_is_allowed() -> None:
    gate, batcher = held(BatchLimits(wait=0.02))
    both = batcher.submit("x", [1, 2], [1, 1])
    gate.open.set()
    both.result(SECONDS)
    assert batcher.submit("x", [3], [1]).result(SECONDS) == [("x", 3)]
    batcher.close()


def test_what_the_time_does_not_suffice_for_is_refused_not_forgotten() -> None:
    gate, batcher = held(BatchLimits())
    waiting = batcher.submit("x", [1, 2], [1, 1])
    assert batcher.close(0.01) == 3
    with pytest.raises(BusyError, match="stopped before"):
        waiting.result(0)
    assert batcher.alive()
    gate.open.set()
    assert not batcher.alive()
