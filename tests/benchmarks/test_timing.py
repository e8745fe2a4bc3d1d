import time

import pytest

from phmctl.benchmarks import timing
from phmctl.benchmarks.timing import Spread, compare, watched


class Clock:
    """A clock that stands still but for what the candidates spend."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self.log: list[str] = []
        self.speed = 1.0
        monkeypatch.setattr(timing, "clock_of", lambda device: lambda: self.now)

    def candidate(self, name: str, seconds: float):
        def call() -> None:
            self.now += seconds * self.speed
            self.log.append(name)

        return call


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def test_seconds_and_ratios(clock: Clock) -> None:
    candidates = {"dense": clock.candidate("dense", 0.010), "phm": clock.candidate("phm", 0.025)}
    result = compare(candidates, rounds=5)
    assert result["phm"].seconds.median == pytest.approx(0.025)
    assert result["phm"].ratio.median == pytest.approx(2.5)
    assert result["phm"].best_ratio == pytest.approx(2.5)
    assert result["dense"].ratio == Spread(1, 1, 1)
    assert result["phm"].rounds == 5


def test_short_calls_are_repeated_to_fill_a_sample(clock: Clock) -> None:
    result = compare({"short": clock.candidate("short", 0.001)}, rounds=3, warmup=1, min_seconds=0.0095)
    assert result["short"].calls == 10
    assert result["short"].seconds.median == pytest.approx(0.001)
    assert len(clock.log) == 1 + 3 * 10


def test_candidates_take_turns_and_each_round_begins_with_another(clock: Clock) -> None:
    candidates = {name: clock.candidate(name, 1.0) for name in "abc"}
    compare(candidates, rounds=3, warmup=1)
    assert "".join(clock.log) == "abc" + "abc" + "bca" + "cab"


def test_progress_hears_of_every_sample(clock: Clock) -> None:
    told: list[int] = []
    compare({name: clock.candidate(name, 1.0) for name in "ab"}, rounds=3, warmup=2, advance=told.append)
    assert sum(told) == 2 * (3 + 1)


def test_a_bar_is_shown_on_a_terminal_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with watched("a layer", 2, 3) as advance:
        advance(1)
    assert capsys.readouterr() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, as rich sees it
    with watched("a layer", 2, 3, comparisons=5):
        pass
    assert "0/40" in capsys.readouterr().err


def test_a_machine_that_slows_down_does_not_change_the_ratio(clock: Clock) -> None:
    def slowing() -> None:
        clock.now += 0.02 * clock.speed
        clock.speed *= 1.2

    result = compare({"base": clock.candidate("base", 0.01), "other": slowing}, rounds=8, warmup=1)
    assert result["other"].seconds.upper > 1.5 * result["other"].seconds.lower
    assert 1.6 < result["other"].ratio.median < 2.1


def test_named_baseline(clock: Clock) -> None:
    result = compare({"a": clock.candidate("a", 1.0), "b": clock.candidate("b", 4.0)}, rounds=2, baseline="b")
    assert (result["a"].ratio.median, result["b"].ratio.median) == (0.25, 1)


def test_spread_is_median_and_quartiles() -> None:
    assert Spread.of([5.0, 1.0, 4.0, 2.0, 3.0]) == Spread(median=3.0, lower=2.0, upper=4.0)
    assert Spread.of([2.0]) == Spread(2.0, 2.0, 2.0)


def test_real_clock() -> None:
    result = compare({"nap": lambda: time.sleep(0.003)}, rounds=2, warmup=1)
    assert 0.003 <= result["nap"].seconds.lower < 0.5


def test_json_holds_plain_numbers(clock: Clock) -> None:
    document = compare({"a": clock.candidate("a", 1.0)}, rounds=1)["a"].as_json()
    assert document["seconds"] == {"median": 1.0, "lower": 1.0, "upper": 1.0}
    assert document["calls"] == 1


def test_misuse() -> None:
    with pytest.raises(ValueError, match="at least one candidate"):
        compare({})
    with pytest.raises(ValueError, match="baseline 'c' is none of a"):
        compare({"a": lambda: None}, baseline="c")
