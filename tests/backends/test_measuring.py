"""The shortest sample of each candidate, by a clock that the test moves."""

import time

import pytest
import torch

from phmctl.backends import measuring
from phmctl.backends.measuring import clock_of, lowest_seconds, own_clock


class Clock:
    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[str] = []

    def __call__(self) -> float:
        return self.now

    def candidate(self, name: str, *seconds: float):
        left = list(seconds)

        def call() -> None:
            self.calls.append(name)
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return call


def test_the_lowest_sample_counts() -> None:
    clock = Clock()
    found = lowest_seconds({"a": clock.candidate("a", 9, 3, 2, 5), "b": clock.candidate("b", 8, 2.5, 4, 1, 4)}, clock)
    assert found == pytest.approx({"a": 2, "b": 1})


def test_what_is_hopeless_is_measured_no_more() -> None:
    clock = Clock()
    seconds = {"a": 1.0e-3, "b": 1.6e-3, "c": 1.4e-3, "d": 2.6e-3}
    lowest_seconds({name: clock.candidate(name, each) for name, each in seconds.items()}, clock)
    assert clock.calls.count("d") == 2
    assert clock.calls.count("b") == 2 + 2 * measuring.EARLY  # each with an untimed one before it
    assert clock.calls.count("a") == clock.calls.count("c") == 2 + measuring.FEWEST + measuring.ROUNDS


def test_what_starts_slowly_may_come_from_behind() -> None:
    clock = Clock()
    slowly = clock.candidate("b", 2.4e-3, 2.2e-3, 2e-3, 0.8e-3)
    assert lowest_seconds({"a": clock.candidate("a", 1e-3), "b": slowly}, clock)["b"] == pytest.approx(0.8e-3)


def test_what_is_fast_only_when_called_again_is_found() -> None:
    clock = Clock()
    other, seconds = [""], {"a": 1.5e-3, "b": 1e-3}

    def call(name: str) -> None:  # b finds its memory taken whenever another was called before it
        clock.now += 2e-3 if name == "b" and other[0] != "b" else seconds[name]
        other[0] = name

    found = lowest_seconds({name: lambda name=name: call(name) for name in seconds}, clock)
    assert found == pytest.approx(seconds)


def test_where_two_are_close_more_samples_decide() -> None:
    clock = Clock()
    seconds = {"a": 1.0e-3, "b": 1.1e-3, "c": 1.2e-3}
    lowest_seconds({name: clock.candidate(name, each) for name, each in seconds.items()}, clock)
    assert clock.calls.count("a") == clock.calls.count("b") == 2 + measuring.FEWEST + 2 * measuring.ROUNDS
    assert clock.calls.count("c") == 2 + measuring.FEWEST + measuring.ROUNDS


def test_what_takes_long_and_is_far_behind_is_called_once() -> None:
    clock = Clock()
    lowest_seconds({name: clock.candidate(name, seconds) for name, seconds in (("a", 0.1), ("b", 0.3))}, clock)
    assert clock.calls.count("b") == 1


def test_the_first_call_of_all_may_take_long() -> None:
    clock = Clock()
    found = lowest_seconds({"a": clock.candidate("a", 0.5, 1e-3), "b": clock.candidate("b", 2e-3)}, clock)
    assert found == pytest.approx({"a": 1e-3, "b": 2e-3})


def test_candidates_take_turns_and_short_ones_are_repeated() -> None:
    clock = Clock()
    lowest_seconds({name: clock.candidate(name, measuring.SAMPLE / 2) for name in "ab"}, clock)
    assert "".join(clock.calls) == "ab" + "ab" + ("aabb" + "bbaa") * measuring.ROUNDS


def test_what_takes_long_is_measured_less() -> None:
    clock = Clock()
    seconds = {"a": 0.2, "b": 0.21, "c": 0.25}
    lowest_seconds({name: clock.candidate(name, each) for name, each in seconds.items()}, clock)
    assert [clock.calls.count(name) for name in "abc"] == [2 + count * measuring.FEWEST for count in (2, 2, 1)]


def test_on_one_thread_the_time_of_others_does_not_count() -> None:
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        clock = own_clock("cpu")
        began = clock()
        time.sleep(0.05)
        assert clock() - began < 0.03
        torch.set_num_threads(2)
        assert own_clock("cpu") is time.perf_counter
    finally:
        torch.set_num_threads(threads)


def test_the_clock_of_a_cpu() -> None:
    first = clock_of("cpu")()
    torch.zeros(10)
    assert clock_of(torch.device("cpu"))() >= first
