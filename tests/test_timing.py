"""Calls are timed in turns."""

import pytest

from phmctl import timing
from phmctl.timing import alternate


class Clock:
    """A clock that moves only by what the calls spend."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.log = 0.0, ""
        monkeypatch.setattr(timing.time, "perf_counter", lambda: self.now)

    def call(self, name: str, seconds: float, growth: float = 1.0):
        def spend() -> None:
            nonlocal seconds
            self.now += seconds
            self.log += name
            seconds *= growth

        return spend


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_each_round_begins_with_another_call(clock: Clock) -> None:
    advances: list[int] = []
    samples = alternate({name: clock.call(name, 1.0) for name in "abc"}, rounds=3, seconds=0.5, advance=advances.append)
    assert clock.log == "abc" + "abc" + "bca" + "cab"
    assert samples == {name: [1.0] * 3 for name in "abc"}
    assert sum(advances) == 3 * (3 + 1)


def test_short_calls_are_repeated_to_fill_a_sample(clock: Clock) -> None:
    samples = alternate({"s": clock.call("s", 0.001)}, rounds=3, seconds=0.0095)
    assert samples["s"] == pytest.approx([0.001] * 3)
    assert len(clock.log) == 2 + 3 * 10


def test_a_slow_first_call_does_not_count(clock: Clock) -> None:
    samples = alternate({"s": clock.call("s", 0.008, growth=1 / 8)}, rounds=1, seconds=0.01)
    assert len(clock.log) == 2 + 10
    assert samples["s"][0] < 0.001
