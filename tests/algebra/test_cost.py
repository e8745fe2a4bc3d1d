"""The cost model: what each execution does, and which one is cheapest."""

import pytest

from phmctl.algebra import cost
from phmctl.algebra.cost import CPU, Constants, Work, cheapest, work_of

NAMES = ("dense", "factored", "rank")


def test_every_execution_has_constants_of_its_own() -> None:
    assert set(CPU) == {(trains, name) for trains in (True, False) for name in NAMES}
    assert all(value >= 0 for constants in CPU.values() for value in constants)
    assert all(constants.product > 0 for constants in CPU.values())


def test_work() -> None:
    assert work_of("dense", 10, 8, 12, 4, None, trains=True) == Work(960, 0, 96, 4 * 96)
    assert work_of("dense", 10, 8, 12, 4, None, trains=False).build == 0
    assert work_of("factored", 10, 8, 12, 4, None, trains=True) == Work(960, 10 * 16 * 8, 24, 0)
    assert work_of("rank", 10, 8, 12, 4, 8, trains=True) == Work(480, 10 * 8 * 20, 48, 2 * 96)


def test_seconds_add_up() -> None:
    assert Constants(1, 2, 3, 4, 5).seconds(Work(1, 10, 100, 1000)) == pytest.approx(4326e-9)


def test_the_cheapest_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"dense": 3.0, "factored": 2.0, "rank": 1.0}
    constants = {(True, name): Constants(0, 0, 0, 0, call) for name, call in calls.items()}
    monkeypatch.setattr(cost, "CPU", constants)
    assert cheapest(1, 8, 8, 4, 7, trains=True) == "rank"
    assert cheapest(1, 8, 8, 4, None, trains=True) == "factored"
