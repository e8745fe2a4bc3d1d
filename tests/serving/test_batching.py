import threading
import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("uvicorn")

from hypothesis import given
from hypothesis import strategies as st

from phmctl.errors import UserError
from phmctl.serving.server import Batcher

SECONDS = 10  # time-out of a hanging test


class BadItemError(Exception):
    pass


class Recorder:
    """Answers an item with (key, item), raises BadItemError for negative items, and records the batches."""

    def __init__(self) -> None:
        self.batches: list[tuple[str, list[int]]] = []

    def __call__(self, key: str, items: Sequence[int]) -> list[tuple[str, int]]:
        self.batches.append((key, list(items)))
        if any(item < 0 for item in items):
            raise BadItemError(f"{key}: {[item for item in items if item < 0]}")
        return [(key, item) for item in items]


class Gate(Recorder):
    """A recorder that waits until it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.entered, self.open = threading.Event(), threading.Event()

    def __call__(self, key: str, items: Sequence[int]) -> list[tuple[str, int]]:
        self.entered.set()
        assert self.open.wait(SECONDS)
        return super().__call__(key, items)


def results(futures):
    return [future.result(SECONDS) for future in futures]


def held(**options: Any) -> tuple[Gate, Batcher]:
    """Return a batcher whose only worker is busy with item 0, and the gate that holds it."""
    gate = Gate()
    batcher = Batcher(gate, **options)
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


@given(
    clients=st.lists(st.lists(asks, max_size=8), min_size=1, max_size=4),
    workers=st.integers(1, 3),
    size=st.integers(1, 8),
    cost=st.integers(1, 40),
)
def test_each_request_gets_its_answers_whatever_happens_to_others(clients, workers, size, cost) -> None:
    recorder = Recorder()
    batcher: Batcher = Batcher(recorder, largest=size, largest_cost=cost, wait=0.0005, workers=workers)

    def client(requests: Sequence[Ask]) -> None:
        futures = []
        for ask in requests:
            submitted = batcher.submit(ask.key, ask.items, [abs(item) for item in ask.items])
            futures += [(ask, item, future) for item, future in zip(ask.items, submitted, strict=True)]
        cancelled = [ask.cancel and future.cancel() for ask, _, future in futures]
        for (ask, item, future), was_cancelled in zip(futures, cancelled, strict=True):
            if was_cancelled:
                with pytest.raises(CancelledError):
                    future.result(SECONDS)
            elif item < 0:
                with pytest.raises(BadItemError, match=rf"{ask.key}: \[-1\]"):
                    future.result(SECONDS)
            else:
                assert future.result(SECONDS) == (ask.key, item)

    with ThreadPoolExecutor(len(clients)) as pool:
        list(pool.map(client, clients))
    assert batcher.queued() == 0
    for _, items in recorder.batches:
        assert len(items) <= size
        assert len(items) == 1 or sum(map(abs, items)) <= cost


def test_many_items_wake_all_idle_workers() -> None:
    together = threading.Barrier(4)

    def answer(key: str, items: Sequence[int]) -> Sequence[int]:
        together.wait(SECONDS)  # raises unless all four workers arrive
        return items

    batcher: Batcher = Batcher(answer, largest=32, workers=4)
    assert results(batcher.submit("x", list(range(128)), [1] * 128)) == list(range(128))


def test_waiting_items_are_batched_by_key_in_order() -> None:
    gate, batcher = held(largest=3)
    futures = [batcher.submit(key, [item], [1])[0] for item, key in enumerate("xyxxx", start=1)]
    gate.open.set()
    assert results(futures) == [(key, n) for n, key in enumerate("xyxxx", start=1)]
    assert gate.batches == [("busy", [0]), ("x", [1, 3, 4]), ("y", [2]), ("x", [5])]


def test_the_cost_of_a_batch_is_limited_but_one_item_always_fits() -> None:
    gate, batcher = held(largest_cost=10)
    futures = batcher.submit("x", [4, 6, 1, 99, 2], [4, 6, 1, 99, 2])
    gate.open.set()
    results(futures)
    assert [items for _, items in gate.batches[1:]] == [[4, 6], [1], [99], [2]]


@pytest.mark.parametrize(("error", "failed"), [(UserError("n_best"), 0), (ZeroDivisionError(), 1)])
def test_a_mistake_of_a_client_is_no_failure(error: Exception, failed: int) -> None:
    def answer(key: str, items: Sequence[int]) -> Sequence[int]:
        raise error

    batcher: Batcher = Batcher(answer)
    with pytest.raises(type(error)):
        batcher.submit("x", [1], [1])[0].result(SECONDS)
    assert batcher.counts["failed"] == failed


def test_too_few_answers_are_an_error() -> None:
    batcher: Batcher = Batcher(lambda key, items: [])
    with pytest.raises(RuntimeError, match="0 answers"):
        results(batcher.submit("x", [1], [1]))


def test_a_lone_client_does_not_wait() -> None:
    batcher: Batcher = Batcher(Recorder(), wait=1000 * SECONDS)
    for item in range(5):  # each result within SECONDS, far below the limit of waiting
        results(batcher.submit("x", [item], [1]))


def test_after_a_large_batch_the_next_waits_to_be_as_large() -> None:
    gate, batcher = held(wait=1000 * SECONDS)
    first = batcher.submit("x", [0, 1, 2], [1] * 3)
    gate.open.set()
    results(first)
    second = []
    for item in range(3, 6):
        second += batcher.submit("x", [item], [1])
        time.sleep(0.01)
    results(second)
    assert [items for _, items in gate.batches[1:]] == [[0, 1, 2], [3, 4, 5]]


def test_a_batch_waits_no_longer_than_the_limit() -> None:
    gate, batcher = held(wait=0.02)
    pair = batcher.submit("x", [1, 2], [1, 1])
    gate.open.set()
    results(pair)
    assert results(batcher.submit("x", [3], [1])) == [("x", 3)]
