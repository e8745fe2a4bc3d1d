import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from phmctl.metrics.significance import accuracy_scorer, difference, holm, two_sided_t
from phmctl.metrics.text import all_scores, text_scorer


@pytest.mark.parametrize(
    ("t", "freedom", "p"),  # from printed tables of Student's t, which becomes normal
    [
        *((12.706, 1, 0.05), (4.303, 2, 0.05), (2.776, 4, 0.05), (4.604, 4, 0.01), (2.228, 10, 0.05)),
        *((1.984, 100, 0.05), (1.959964, 9_000, 0.05), (1.959964, math.inf, 0.05), (0, 3, 1)),
    ],
)
def test_students_t_matches_printed_tables(t: float, freedom: float, p: float) -> None:
    assert two_sided_t(t, freedom) == pytest.approx(p, abs=4e-5)
    assert two_sided_t(-t, freedom) == two_sided_t(t, freedom)


def test_holm_is_the_procedure_step_by_step() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.9]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0, 1), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_is_at_most_bonferronis(values: list[float]) -> None:
    corrected = holm(values)
    order = sorted(range(len(values)), key=lambda index: values[index])
    assert [corrected[index] for index in order] == sorted(corrected)
    assert all(p <= q <= min(1, len(values) * p) for p, q in zip(values, corrected, strict=True))


def test_one_seed_a_side_is_the_bootstrap_of_a_paired_difference() -> None:
    """Only items are resampled: the standard error of the mean of paired differences."""
    generator = np.random.default_rng(3)
    one, other = generator.random((1, 400)) < 0.6, generator.random((1, 400)) < 0.7
    result = difference(accuracy_scorer(one), accuracy_scorer(other), 400, samples=4000)
    change = 100 * (other[0].astype(float) - one[0])
    error = change.std(ddof=1) / 20
    assert result.difference.value == pytest.approx(change.mean())
    assert result.difference.high - result.difference.low == pytest.approx(2 * 1.96 * error, rel=0.05)
    assert result.p_value == pytest.approx(math.erfc(abs(change.mean()) / error / math.sqrt(2)), abs=0.01)


def test_without_variation_over_items_the_test_is_welchs_t_test() -> None:
    """Every item of a seed has the same score, so resampling items changes nothing: mean ± t · s / √S."""
    one, other = np.array([70.0, 72.0, 71.0]), np.array([73.0, 77.0, 75.0])
    result = difference(
        lambda counts: np.tile(one, (len(counts), 1)), lambda counts: np.tile(other, (len(counts), 1)), 50, samples=8000
    )
    variances = one.var(ddof=1) / 3, other.var(ddof=1) / 3
    freedom = sum(variances) ** 2 / sum(variance**2 / 2 for variance in variances)
    t = (other.mean() - one.mean()) / math.sqrt(sum(variances))
    assert result.p_value == pytest.approx(two_sided_t(t, freedom), rel=0.15)
    assert (result.baseline.value, result.system.value, result.difference.value) == (71, 75, 4)
    half = 4.303 * math.sqrt(variances[0])  # t of two degrees of freedom
    assert result.baseline.high - 71 == pytest.approx(half, rel=0.05)


@pytest.mark.parametrize("turned", [False, True])
def test_a_single_seed_against_several_is_assumed_to_vary_as_they_do(turned: bool) -> None:
    one, other = np.array([70.0]), np.array([73.0, 77.0, 75.0])
    scorers = [lambda counts, scores=scores: np.tile(scores, (len(counts), 1)) for scores in (one, other)]
    result = difference(*(reversed(scorers) if turned else scorers), 50, samples=8000)
    error = math.sqrt(other.var(ddof=1) * (1 + 1 / 3))
    assert result.p_value == pytest.approx(two_sided_t(5 / error, 2), rel=0.05)
    assert abs(result.difference.value) == 5
    assert result.difference.high - result.difference.value == pytest.approx(4.303 * error, rel=0.05)


def test_equal_and_completely_different_systems() -> None:
    right = accuracy_scorer(np.random.default_rng(1).random((3, 50)) < 0.5)
    result = difference(right, right, 50, samples=200)
    assert (result.difference.value, result.p_value) == (0, 1)
    result = difference(accuracy_scorer([[False] * 40]), accuracy_scorer([[True] * 40]), 40, samples=99)
    assert (result.difference.value, result.p_value) == (100, 1 / 100)  # the smallest p of 99 samples
    result = difference(accuracy_scorer([[False]]), accuracy_scorer([[True]]), 1, samples=99)
    assert result.p_value == 1  # a single item allows no test


@pytest.mark.parametrize(("name", "column"), [("BLEU", 0), ("chrF2", 1)])
def test_texts_are_scored_as_sacrebleu_scores_the_sample(name: str, column: int) -> None:
    references = ["the cat sat on the mat", "a dog barks at the moon tonight", "birds fly south in the autumn"]
    systems = [[line.replace("the", "a") for line in references], references]
    score = text_scorer(name, systems, references)
    counts = np.array([[1.0, 1, 1], [2, 0, 1]])
    drawn = [references[0], references[0], references[2]]
    expected = all_scores([line.replace("the", "a") for line in drawn], drawn)[column].value
    result = score(counts)
    assert result.shape == (2, 2)
    assert result[0, 0] == pytest.approx(all_scores(systems[0], references)[column].value)
    assert result[1] == pytest.approx([expected, 100])


@pytest.mark.slow
@pytest.mark.parametrize("seeds", [(3, 3), (1, 3), (5, 1)])
@pytest.mark.parametrize("spread", [0.0, 0.1, 1.0])
def test_equal_systems_differ_significantly_at_most_one_time_in_twenty(spread: float, seeds: tuple[int, int]) -> None:
    """The level holds for few seeds, whether items or seeds dominate."""
    generator, rejections, times, items = np.random.default_rng(0), 0, 100, 50
    for _ in range(times):
        item = generator.normal(size=items)

        def train(seeds: int, item: np.ndarray = item):
            table = item + generator.normal(size=(seeds, items)) + spread * generator.normal(size=(seeds, 1))
            return lambda counts: counts @ table.T / items

        rejections += difference(train(seeds[0]), train(seeds[1]), items, samples=200).p_value < 0.05
    assert rejections <= 12  # at most 5 are expected; 13 has a probability of a thousandth


def test_resampling_in_blocks_gives_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(5)
    one, other = (accuracy_scorer(generator.random((3, 60)) < share) for share in (0.5, 0.6))
    at_once = difference(one, other, 60, samples=100)
    monkeypatch.setattr("phmctl.metrics.significance._BLOCK", 60 * 7)
    assert difference(one, other, 60, samples=100) == at_once
