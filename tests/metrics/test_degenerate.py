"""Answers that show that nothing was read."""

import pytest

from phmctl.metrics.text import Degenerate, loops, remarks

LINES = [f"line {number}" for number in range(20)]


def test_empty_answers_are_counted_and_empty_lines_want_none() -> None:
    assert remarks(["a", "", " ", "b", "c"], ["", "", "", "x", " "]) == ["2 of 3 answers are empty"]


@pytest.mark.parametrize(("equal", "said"), [(1.0, False), (0.5, True)])
def test_equal_answers_are_told(equal: float, said: bool) -> None:
    answers = ["a man"] * 12 + [f"answer {number}" for number in range(8)]
    assert remarks(LINES, answers, equal) == (["12 of 20 answers are the same: 'a man'"] if said else [])
    assert remarks(LINES, ["yes"] * 20, equal) == ["20 of 20 answers are the same: 'yes'"]


def test_sound_answers_and_equal_ones_to_few_or_equal_lines_are_no_fault() -> None:
    assert remarks(LINES, [f"answer {number}" for number in range(20)]) == []
    assert remarks([], []) == []
    assert remarks(LINES[:9], ["yes"] * 9) == []
    assert remarks(["the same"] * 20, ["yes"] * 20) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("the the the the", True),
        ("the the the", False),
        ("it is said , it is said , it is said , it is said , so", True),
        ("a b a b a b a b", True),
        ("a b a b a b a", False),
        ("a a b b a a b b", False),
        ("", False),
    ],
)
def test_loops(text: str, found: bool) -> None:
    assert loops(text) is found


def test_loops_are_told_from_one_in_a_hundred_on() -> None:
    counted = Degenerate()
    counted.add(["x"] * 100, ["go go go go", *(f"answer {number}" for number in range(99))])
    assert list(counted.remarks()) == [
        "1 of 100 answers repeat themselves: a few words come 4 times in a row or more",
    ]
    counted.add(["x"], ["fine"])
    assert list(counted.remarks()) == []
