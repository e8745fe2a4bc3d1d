"""Schedules, by value."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.training.optimiser import build_schedule, constant, inverse_sqrt, linear
from tests.training.fake import make_recipe


@pytest.mark.parametrize(("step", "rate"), [(1, 0.0025), (2, 0.005), (4, 0.01), (16, 0.005), (400, 0.001)])
def test_inverse_sqrt(step: int, rate: float) -> None:
    assert inverse_sqrt(step, 0.01, 4) == pytest.approx(rate, rel=1e-12)


@given(step=st.integers(1, 10**6), warmup=st.integers(1, 20_000), width=st.sampled_from([256, 512]))
def test_inverse_sqrt_is_the_papers_formula(step: int, warmup: int, width: int) -> None:
    paper = width**-0.5 * min(step**-0.5, step * warmup**-1.5)
    assert inverse_sqrt(step, (width * warmup) ** -0.5, warmup) == pytest.approx(paper, rel=1e-9)


def test_inverse_sqrt_without_warmup_begins_at_the_peak() -> None:
    assert [inverse_sqrt(step, 1.0, 0) for step in (1, 4)] == [1.0, 0.5]


def test_constant() -> None:
    assert [constant(step, 0.1, 2) for step in (1, 2, 3, 1000)] == [0.05, 0.1, 0.1, 0.1]
    assert constant(1, 0.1, 0) == 0.1


def test_linear() -> None:
    rates = [linear(step, 1.0, 2, 6) for step in range(1, 8)]
    assert rates == pytest.approx([0.5, 1.0, 0.8, 0.6, 0.4, 0.2, 0.0])


def test_linear_without_warmup_begins_at_the_peak() -> None:
    assert [linear(step, 1.0, 0, 4) for step in range(1, 5)] == pytest.approx([1.0, 0.75, 0.5, 0.25])


@pytest.mark.parametrize("name", ["inverse_sqrt", "constant", "linear"])
def test_the_recipe_chooses(name: str) -> None:
    settings = make_recipe(schedule=name, warmup=3, steps=12, learning_rate=0.5).training
    expected = {"inverse_sqrt": 0.5 * math.sqrt(3 / 12), "constant": 0.5, "linear": 0.5 / 10}
    assert build_schedule(settings)(12) == pytest.approx(expected[name])


@given(st.integers(1, 50), st.integers(0, 60))
def test_no_schedule_leaves_zero_to_peak(step: int, warmup: int) -> None:
    for rate in (inverse_sqrt(step, 2.0, warmup), constant(step, 2.0, warmup), linear(step, 2.0, warmup, 50)):
        assert 0 < rate <= 2.0 * (1 + 1e-12)
