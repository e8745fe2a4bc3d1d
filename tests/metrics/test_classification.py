import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.metrics.classification import accuracy, class_scores, confusion, mcnemar, parts

REFERENCES = ["a", "a", "a", "b", "b", "c"]
PREDICTIONS = ["a", "a", "b", "b", "a", "a"]


def test_accuracy_and_wilsons_interval() -> None:
    measured = accuracy(["x"] * 81 + ["y"] * 182, ["x"] * 263)
    assert (measured.right, measured.total) == (81, 263)
    assert measured.value == pytest.approx(0.307985, abs=1e-6)
    assert (measured.lower, measured.upper) == pytest.approx((0.2553, 0.3662), abs=1e-4)  # Newcombe 1998, method 3


@pytest.mark.parametrize(("right", "total"), [(0, 5), (5, 5)])
def test_interval_at_the_ends(right: int, total: int) -> None:
    measured = accuracy(["a"] * right + ["b"] * (total - right), ["a"] * total)
    assert 0 <= measured.lower <= measured.value <= measured.upper <= 1
    assert measured.upper - measured.lower == pytest.approx(0.4345, abs=1e-4)


def test_class_scores_by_hand() -> None:
    a, b, c = class_scores(PREDICTIONS, REFERENCES, ["a", "b", "c"])
    assert (a.precision, a.recall, a.f1, a.support) == pytest.approx((0.5, 2 / 3, 4 / 7, 3))
    assert (b.precision, b.recall, b.f1, b.support) == pytest.approx((0.5, 0.5, 0.5, 2))
    assert (c.precision, c.recall, c.f1, c.support) == (0, 0, 0, 1)
    assert confusion(PREDICTIONS, REFERENCES, ["a", "b", "c"]) == [[2, 1, 0], [1, 1, 0], [1, 0, 0]]


def test_mcnemar_by_hand() -> None:
    references = ["x"] * 12
    baseline = ["x"] * 2 + ["y"] * 8 + ["x", "y"]  # right alone in 2
    system = ["y"] * 2 + ["x"] * 8 + ["x", "y"]  # right alone in 8
    assert mcnemar(baseline, system, references) == pytest.approx(2 * (1 + 10 + 45) / 1024)
    assert mcnemar(PREDICTIONS, PREDICTIONS, REFERENCES) == 1


def test_mcnemar_is_exact_if_many_items_differ() -> None:
    """Compare with the normal approximation; tens of thousands of items differ on large test sets."""
    lost, won = 20_000, 20_400
    references = ["a"] * (lost + won)
    baseline = ["a"] * lost + ["b"] * won
    p_value = mcnemar(baseline, ["b"] * lost + ["a"] * won, references)
    z = (abs(won - lost) - 1) / math.sqrt(won + lost)
    assert p_value == pytest.approx(math.erfc(z / math.sqrt(2)), rel=1e-3)


@given(st.lists(st.integers(-1, 40), max_size=200))
def test_every_row_is_in_one_group_and_groups_ascend(values: list[int]) -> None:
    groups = parts(values)
    assert sorted(row for _, rows in groups for row in rows) == list(range(len(values)))
    ranges = [{values[row] for row in rows} for value, rows in groups if value is not None]
    assert all(max(lower) < min(upper) for lower, upper in pairwise(ranges))
    assert [value for value, _ in groups if value is not None] == [
        next(iter(members)) if len(members) == 1 else f"{min(members)}–{max(members)}" for members in ranges
    ]
    assert len(groups) <= 13
    if len({value for value in values if value >= 0}) <= 12:
        assert all(len(members) == 1 for members in ranges)
    if any(value < 0 for value in values):
        assert groups[-1] == (None, [row for row, value in enumerate(values) if value < 0])
