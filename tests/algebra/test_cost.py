"""The cost model: what each execution does, and which one is cheapest."""

from collections.abc import Iterator

import pytest

from phmctl.algebra import cost
from phmctl.algebra.cost import CACHED, ONE_THREAD, TWO_THREADS, Constants, Work, cheapest, work_of
from phmctl.algebra.products import MKL, ONEDNN

NAMES = ("dense", "factored", "rank")


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """Choices are remembered; those by made-up constants must not be."""
    cheapest.cache_clear()
    yield
    cheapest.cache_clear()


def test_every_execution_has_constants_of_its_own() -> None:
    for table in (ONE_THREAD, TWO_THREADS):
        assert set(table) == {(trains, name) for trains in (True, False) for name in NAMES}
        assert all(value >= 0 for constants in table.values() for value in constants)
        assert all(constants.product > 0 for constants in table.values())


def test_work() -> None:
    assert work_of("dense", 10, 8, 12, 4, None, trains=True) == Work(960, 0, 0, 0, 96, 0, 0, 4 * 96, 1)
    assert work_of("dense", 10, 8, 12, 4, None, trains=False).build == 0
    assert work_of("factored", 10, 8, 12, 4, None, trains=True) == Work(960, 0, 10 * 16 * 8, 10, 24, 0, 0, 0, 1)
    assert work_of("rank", 10, 8, 12, 4, 8, trains=True) == Work(480, 0, 10 * 8 * 20, 10, 48, 0, 0, 4 * 48, 1)


@pytest.mark.parametrize("execution", NAMES)
def test_large_products_are_those_of_the_faster_library(execution: str) -> None:
    few, many = (work_of(execution, tokens, 512, 512, 4, 7, trains=False, library=ONEDNN) for tokens in (1, 1024))
    assert few.fast == 0 < few.product
    assert many.product == many.weight == 0 < many.fast
    assert few.fast_weight == 0 < many.fast_weight
    assert many.fast == work_of(execution, 1024, 512, 512, 4, 7, trains=False, library=MKL).product


def test_weights_beyond_the_cache_and_calls_are_counted() -> None:
    assert work_of("dense", 1, 2048, 4096, 4, None, trains=False).far == 2048 * 4096 - CACHED
    assert work_of("rank", 1, 2048, 4096, 4, 8, trains=False).far == 2048 * 4096 / 2 - CACHED
    assert [work_of("rank", tokens, 8, 8, 4, 8, trains=True).call for tokens in (1, 1024, 1025, 8192)] == [1, 1, 2, 8]


def test_seconds_add_up() -> None:
    assert Constants(1, 2, 3, 4, 5, 6, 7, 8, 9).seconds(Work(1, 10, 100, 1000, 0, 1, 0, 2, 1)) == pytest.approx(4352e-9)


def test_the_cheapest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"dense": 3.0, "factored": 2.0, "rank": 1.0}
    constants = {(True, name): Constants(0, 0, 0, 0, 0, 0, 0, 0, call) for name, call in calls.items()}
    monkeypatch.setattr(cost, "ONE_THREAD", constants)
    assert cheapest(1, 8, 8, 4, 7, trains=True) == "rank"
    assert cheapest(1, 8, 8, 4, None, trains=True) == "factored"


def test_several_threads_have_constants_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"dense": 1.0, "factored": 2.0}
    monkeypatch.setattr(
        cost, "TWO_THREADS", {(True, name): Constants(0, 0, 0, 0, 0, 0, 0, 0, c) for name, c in names.items()}
    )
    for threads in (2, 16):
        assert cheapest(1, 8, 8, 4, None, trains=True, threads=threads) == "dense"
