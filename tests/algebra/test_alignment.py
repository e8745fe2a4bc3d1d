import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phmctl.algebra.alignment import (
    align_rules,
    chance_distance,
    change_basis,
    determined_terms,
    known_rules,
    nearest_known,
)
from phmctl.algebra.kronecker import fixed_rule, kronecker_sum, nearest_sum
from tests.references import multiply

FIXED = ["complex", "quaternion", "octonion", "sedenion"]


def true_rule(algebra: str) -> Tensor:
    return fixed_rule(algebra, dtype=torch.float64)


def opposite(rule: Tensor) -> Tensor:
    """The algebra with its factors exchanged: e_i e_b becomes e_b e_i."""
    return rule.permute(2, 1, 0)


def draw_basis(n: int, seed: int) -> Tensor:
    P = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return P + 2 * torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize("algebra", FIXED)
@given(seed=st.integers(0, 10_000))
@settings(max_examples=8, deadline=None)
def test_a_rule_in_another_basis_is_recognised(algebra: str, seed: int) -> None:
    truth = true_rule(algebra)
    P = draw_basis(len(truth), seed)
    condition = torch.linalg.cond(P).item()
    rule, _ = change_basis(truth, torch.zeros_like(truth), P)
    found = align_rules(rule, truth)
    assert found.relative_error < 1e-14 * condition + 1e-13
    assert found.span_sine < 1e-14 * condition + 1e-13
    assert found.condition == pytest.approx(condition, rel=1e-9)
    torch.testing.assert_close(found.P @ P, torch.eye(len(truth), dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("other", "truth"),
    [
        (known_rules(4)["2×2 matrices"], true_rule("quaternion")),
        (opposite(true_rule("quaternion")), true_rule("quaternion")),
        (opposite(true_rule("octonion")), true_rule("octonion")),
        (torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(1)), true_rule("quaternion")),
    ],
    ids=["split", "opposite quaternion", "opposite octonion", "random"],
)
def test_another_algebra_is_not_recognised(other: Tensor, truth: Tensor) -> None:
    rule, _ = change_basis(other.double(), torch.zeros_like(truth), draw_basis(len(truth), 2))
    found = align_rules(rule, truth)
    assert found.relative_error > 0.4
    assert found.span_sine > 0.8


def test_half_of_another_rule_is_half_an_error() -> None:
    truth = true_rule("quaternion")
    rule = truth.clone()
    rule[3] = opposite(truth)[3]  # the left multiplication by k becomes the right one, orthogonal to all four
    found = align_rules(rule, truth)
    assert found.relative_error == pytest.approx(0.5)  # a quarter of the square
    assert found.span_sine == pytest.approx(1)


def test_a_rule_that_lost_a_dimension_is_not_a_basis() -> None:
    truth = true_rule("quaternion")
    rule = truth.clone()
    rule[3] = rule[0] + rule[1]
    found = align_rules(rule, truth)
    assert found.relative_error == pytest.approx(0.5)
    assert found.span_sine == 1
    assert found.condition > 1e12


@given(n=st.integers(2, 5), rows=st.integers(1, 3), columns=st.integers(1, 3), seed=st.integers(0, 10_000))
@settings(max_examples=20, deadline=None)
def test_a_change_of_basis_leaves_H(n: int, rows: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(n, n, n, dtype=torch.float64, generator=generator)
    S = torch.randn(n, rows, columns, dtype=torch.float64, generator=generator)
    P = draw_basis(n, seed)
    moved = change_basis(A, S, P)
    accuracy = 1e-13 * torch.linalg.cond(P).item() * (1 + kronecker_sum(A, S).abs().max().item())
    torch.testing.assert_close(kronecker_sum(*moved), kronecker_sum(A, S), atol=10 * accuracy, rtol=0)
    assert not torch.allclose(moved[0], A)


@pytest.mark.parametrize(("algebra", "dims"), [("quaternion", 2), ("quaternion", 4), ("octonion", 3)])
def test_any_rule_that_explains_H_is_the_true_one(algebra: str, dims: int) -> None:
    """Independent components: the decomposition found by singular values has the rule's span."""
    truth = true_rule(algebra)
    n = len(truth)
    S = torch.randn(n, dims, dims, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert determined_terms(S) == n
    found = nearest_sum(kronecker_sum(truth, S), n)
    alignment = align_rules(found.A, truth)
    assert alignment.relative_error < 1e-12
    aligned = change_basis(found.A, found.S, alignment.P)
    torch.testing.assert_close(aligned[0], truth, atol=1e-11, rtol=0)
    torch.testing.assert_close(aligned[1], S, atol=1e-11, rtol=0)


def test_one_quaternion_does_not_determine_the_rule() -> None:
    """With single numbers for components many spans hold the one matrix that is seen."""
    truth = true_rule("quaternion")
    S = torch.randn(4, 1, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert determined_terms(S) == 1
    H = kronecker_sum(truth, S)
    A = torch.stack([H, *torch.eye(16, dtype=torch.float64)[:3].view(3, 4, 4)])
    T = torch.tensor([1.0, 0, 0, 0], dtype=torch.float64).view(4, 1, 1)
    torch.testing.assert_close(kronecker_sum(A, T), H)
    assert align_rules(A, truth).relative_error > 0.5


def test_determined_terms_are_the_independent_components() -> None:
    S = torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(1))
    S[3] = S[0] - 2 * S[1]
    assert determined_terms(S) == 3


# --- known algebras


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 16])
def test_known_algebras_are_told_apart_and_have_orthogonal_matrices(n: int) -> None:
    for name, rule in known_rules(n).items():
        found = nearest_known(rule)
        assert (found.name, round(found.distance, 9)) == (name, 0)
        grams = rule.flatten(1) @ rule.flatten(1).t()
        assert torch.equal(grams, torch.diag(grams.diagonal()))


def test_the_rules_are_those_of_the_algebras() -> None:
    matrices = known_rules(4)["2×2 matrices"]
    p, q = torch.tensor([1.0, 2, 3, 4]).double(), torch.tensor([5.0, 6, 7, 8]).double()
    assert multiply(matrices, p, q).tolist() == [19, 22, 43, 50]
    assert multiply(known_rules(3)["cyclic (circulant)"], p[:3], q[:3]).tolist() == [37, 37, 34]
    assert multiply(known_rules(3)["polynomials mod xⁿ"], p[:3], q[:3]).tolist() == [5, 16, 34]
    assert multiply(known_rules(3)["componentwise"], p[:3], q[:3]).tolist() == [5, 12, 21]
    assert torch.equal(known_rules(8)["octonion"], fixed_rule("octonion", dtype=torch.float64))


@given(st.integers(0, 1000))
def test_the_basis_that_is_free_changes_nothing(seed: int) -> None:
    truth = true_rule("quaternion")
    found = nearest_known(change_basis(truth, torch.zeros_like(truth), draw_basis(4, seed))[0])
    assert found.name == "quaternion"
    assert found.distance == pytest.approx(0, abs=1e-9)
    assert torch.allclose(found.aligned, truth, atol=1e-9)


def test_a_disturbed_rule_is_as_far_as_it_was_disturbed() -> None:
    """A* lies outside the span by the sine of the angle that each matrix was turned by."""
    rule = true_rule("quaternion")
    away = torch.zeros(4, 4, 4).double()
    away[torch.arange(4), torch.arange(4), 0] = 1.0
    away -= torch.einsum("iab,jab,jcd->icd", away, rule, rule) / 4  # orthogonal to the span
    away *= (rule.flatten(1).norm(dim=1) / away.flatten(1).norm(dim=1))[:, None, None]
    one = rule.clone()
    one[0] = math.cos(0.3) * rule[0] + math.sin(0.3) * away[0]
    assert nearest_known(one).distance == pytest.approx(math.sin(0.3) / 2)  # one of four matrices


def test_chance_is_below_the_mean_distance_of_unrelated_spans() -> None:
    assert 0.6 < chance_distance(4) < math.sqrt(1 - 1 / 4)
    assert chance_distance(2) < chance_distance(4) < chance_distance(8) < math.sqrt(1 - 1 / 8)
