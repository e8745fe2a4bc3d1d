import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phmctl.algebra.alignment import chance_distance, known_rules, nearest_known, spectra
from phmctl.algebra.kronecker import fixed_rule
from tests.references import multiply


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
    chance = torch.Generator().manual_seed(seed)
    mixing = torch.eye(4).double() + 0.5 * torch.randn(4, 4, generator=chance).double()
    if torch.linalg.cond(mixing) > 1e4:
        return
    mixed = torch.einsum("ij,jab->iab", mixing, fixed_rule("quaternion", dtype=torch.float64))
    found = nearest_known(mixed)
    assert found.name == "quaternion"
    assert found.distance == pytest.approx(0, abs=1e-9)
    assert torch.allclose(found.aligned, fixed_rule("quaternion", dtype=torch.float64), atol=1e-9)


def test_a_disturbed_rule_is_as_far_as_it_was_disturbed() -> None:
    """A* lies outside the span by the sine of the angle that each matrix was turned by."""
    rule = fixed_rule("quaternion", dtype=torch.float64)
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


def test_spectra_are_those_of_the_matrices_written_out_and_no_basis_changes_them() -> None:
    chance = torch.Generator().manual_seed(1)
    A, S = torch.randn(3, 3, 3, generator=chance).double(), torch.randn(3, 2, 5, generator=chance).double()
    found = spectra(A, S)
    whole = torch.einsum("iab,ist->abst", A, S).reshape(9, 10)
    assert found.terms == pytest.approx((torch.linalg.svdvals(whole)[:3] / whole.norm()).tolist())
    assert sum(each**2 for each in found.terms) == pytest.approx(1)
    assert sum(each**2 for each in found.outputs) == pytest.approx(1)
    P = torch.randn(3, 3, generator=chance).double()
    mixed = spectra(torch.einsum("ij,jab->iab", P, A), torch.einsum("ij,jst->ist", torch.linalg.inv(P).t(), S))
    for one, other in zip(found, mixed, strict=True):
        assert one == pytest.approx(other)


def test_a_division_algebra_uses_outputs_and_inputs_evenly() -> None:
    found = spectra(fixed_rule("quaternion"), torch.randn(4, 3, 3, generator=torch.Generator().manual_seed(2)))
    assert found.outputs == pytest.approx([0.5] * 4)
    assert found.inputs == pytest.approx([0.5] * 4)


def test_terms_that_are_not_used_carry_nothing() -> None:
    S = torch.zeros(4, 3, 3)
    S[0] = 1.0
    assert spectra(fixed_rule("quaternion"), S).terms == pytest.approx([1, 0, 0, 0])
