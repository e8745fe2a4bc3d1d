import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from phmctl.algebra.alignment import align_rules, change_basis, determined_terms
from phmctl.algebra.kronecker import fixed_rule, kronecker_sum, nearest_sum

UNITS = torch.eye(4, dtype=torch.float64).view(4, 2, 2)  # E₁₁, E₁₂, E₂₁, E₂₂
MATRICES = torch.einsum("ipq,bqr,apr->iab", UNITS, UNITS, UNITS)  # the algebra of 2×2 matrices
FIXED = ["complex", "quaternion", "octonion", "sedenion"]


def true_rule(algebra: str) -> Tensor:
    return fixed_rule(algebra, dtype=torch.float64)


def opposite(rule: Tensor) -> Tensor:
    """Return the opposite algebra, in which e_i e_b becomes e_b e_i."""
    return rule.permute(2, 1, 0)


def draw_basis(n: int, seed: int) -> Tensor:
    P = torch.randn(n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    return P + 2 * torch.eye(n, dtype=torch.float64)


@pytest.mark.parametrize("algebra", FIXED)
@given(seed=st.integers(0, 10_000))
def test_a_rule_in_another_basis_is_recognised(algebra: str, seed: int) -> None:
    truth = true_rule(algebra)
    P = draw_basis(len(truth), seed)
    condition = torch.linalg.cond(P).item()
    rule, _ = change_basis(truth, torch.zeros_like(truth), P)
    alignment = align_rules(rule, truth)
    assert alignment.relative_error < 1e-14 * condition + 1e-13
    assert alignment.span_sine < 1e-14 * condition + 1e-13
    assert alignment.condition == pytest.approx(condition, rel=1e-9)
    torch.testing.assert_close(alignment.P @ P, torch.eye(len(truth), dtype=torch.float64), atol=1e-9, rtol=0)


@pytest.mark.parametrize(
    ("wrong_rule", "truth"),
    [
        (MATRICES, true_rule("quaternion")),
        (opposite(true_rule("quaternion")), true_rule("quaternion")),
        (opposite(true_rule("octonion")), true_rule("octonion")),
        (torch.randn(4, 4, 4, generator=torch.Generator().manual_seed(1)), true_rule("quaternion")),
    ],
    ids=["split", "opposite quaternion", "opposite octonion", "random"],
)
def test_another_algebra_is_not_recognised(wrong_rule: Tensor, truth: Tensor) -> None:
    rule, _ = change_basis(wrong_rule.double(), torch.zeros_like(truth), draw_basis(len(truth), 2))
    alignment = align_rules(rule, truth)
    assert alignment.relative_error > 0.4
    assert alignment.span_sine > 0.8


def test_the_error_counts_the_matrices_that_differ() -> None:
    truth = true_rule("quaternion")
    rule = truth.clone()
    rule[3] = opposite(truth)[3]  # right instead of left multiplication by k, orthogonal to the span
    alignment = align_rules(rule, truth)
    assert alignment.relative_error == pytest.approx(0.5)  # one of four matrices: a quarter of the squared norm
    assert alignment.span_sine == pytest.approx(1)


def test_a_rule_of_lower_dimension_gives_a_singular_change_of_basis() -> None:
    truth = true_rule("quaternion")
    rule = truth.clone()
    rule[3] = rule[0] + rule[1]
    alignment = align_rules(rule, truth)
    assert alignment.relative_error == pytest.approx(0.5)
    assert alignment.span_sine == 1
    assert alignment.condition > 1e12


@given(n=st.integers(2, 5), rows=st.integers(1, 3), columns=st.integers(1, 3), seed=st.integers(0, 10_000))
def test_a_change_of_basis_does_not_change_H(n: int, rows: int, columns: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(n, n, n, dtype=torch.float64, generator=generator)
    S = torch.randn(n, rows, columns, dtype=torch.float64, generator=generator)
    P = draw_basis(n, seed)
    A_mixed, S_mixed = change_basis(A, S, P)
    accuracy = 1e-13 * torch.linalg.cond(P).item() * (1 + kronecker_sum(A, S).abs().max().item())
    torch.testing.assert_close(kronecker_sum(A_mixed, S_mixed), kronecker_sum(A, S), atol=10 * accuracy, rtol=0)
    assert not torch.allclose(A_mixed, A)


@pytest.mark.parametrize(("algebra", "dims"), [("quaternion", 2), ("quaternion", 4), ("octonion", 3)])
def test_H_determines_the_rule_if_the_components_are_independent(algebra: str, dims: int) -> None:
    truth = true_rule(algebra)
    n = len(truth)
    S = torch.randn(n, dims, dims, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    assert determined_terms(S) == n
    nearest = nearest_sum(kronecker_sum(truth, S), n)
    alignment = align_rules(nearest.A, truth)
    assert alignment.relative_error < 1e-12
    aligned = change_basis(nearest.A, nearest.S, alignment.P)
    torch.testing.assert_close(aligned, (truth, S), atol=1e-11, rtol=0)


def test_a_single_quaternion_does_not_determine_the_rule() -> None:
    """With 1 × 1 components, many spans contain H."""
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
