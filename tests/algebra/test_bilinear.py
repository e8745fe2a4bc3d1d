import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.algebra.bilinear import TOLERANCE, Factors, decompose, generic_rank, recompose
from phmctl.algebra.kronecker import fixed_rule
from phmctl.errors import RankError
from tests.references import bilinear_rank


def random_rule(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, n, n, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def relative_residual(rule: torch.Tensor, factors: Factors) -> float:
    return ((recompose(factors) - rule).norm() / rule.norm()).item()


def rule_of_rank(n: int, rank: int) -> torch.Tensor:
    W, U, V = torch.randn(3, n, rank, dtype=torch.float64, generator=torch.Generator().manual_seed(rank))
    return torch.einsum("ir,ar,br->iab", W, U, V)


@pytest.mark.parametrize(("n", "rank"), [(1, 1), (2, 3), (3, 5), (4, 7), (5, 10), (6, 14), (7, 19), (8, 24), (16, 90)])
def test_generic_rank(n: int, rank: int) -> None:
    assert generic_rank(n) == rank


def test_recompose_is_the_sum_over_terms() -> None:
    W, U, V = torch.randn(2, 3), torch.randn(2, 3), torch.randn(3, 2)
    A = recompose(Factors(W, U, V))
    assert A[1, 0, 1].item() == pytest.approx(sum((W[1, r] * U[0, r] * V[r, 1]).item() for r in range(3)), rel=1e-5)


@settings(max_examples=12, deadline=None)
@given(n=st.integers(1, 6), seed=st.integers(0, 10**6), scale=st.sampled_from([1e-3, 1.0, 1e4]))
def test_random_rules_are_exact_and_well_conditioned_at_the_generic_rank(n: int, seed: int, scale: float) -> None:
    rule = scale * random_rule(n, seed)
    factors = decompose(rule)
    rank = len(factors.V)
    assert factors.W.shape == factors.U.shape == (n, rank)
    assert factors.V.shape == (rank, n)
    assert relative_residual(rule, factors) <= TOLERANCE
    assert 0 <= rank - generic_rank(n) <= 1
    norms = torch.stack([factors.W.norm(dim=0), factors.U.norm(dim=0), factors.V.norm(dim=1)])
    torch.testing.assert_close(norms, norms[:1].expand(3, -1))
    assert max(factor.abs().max().item() for factor in factors) <= 6 * rule.square().mean().sqrt().item() ** (1 / 3)


@pytest.mark.parametrize(("n", "rank"), [(8, 24), pytest.param(16, 90, marks=pytest.mark.slow)])
def test_high_orders_at_the_generic_rank(n: int, rank: int) -> None:
    rule = random_rule(n)
    factors = decompose(rule)
    assert len(factors.V) == rank
    assert relative_residual(rule, factors) <= TOLERANCE


@pytest.mark.parametrize(("algebra", "rank"), [("real", 1), ("complex", 3), ("quaternion", 8)])
def test_known_ranks(algebra: str, rank: int) -> None:
    assert bilinear_rank(fixed_rule(algebra, dtype=torch.float64)) == rank


@pytest.mark.parametrize(("algebra", "rank"), [("quaternion", 8), pytest.param("octonion", 25, marks=pytest.mark.slow)])
def test_some_algebras_need_one_product_more_than_the_generic_rank(algebra: str, rank: int) -> None:
    rule = fixed_rule(algebra, dtype=torch.float64)
    factors = decompose(rule)
    assert len(factors.V) == rank == generic_rank(len(rule)) + 1
    assert relative_residual(rule, factors) <= TOLERANCE


@pytest.mark.parametrize(("n", "rank"), [(3, 2), (4, 4), (4, 5), (5, 6)])
def test_the_rank_of_a_sum_of_few_products_is_found(n: int, rank: int) -> None:
    assert bilinear_rank(rule_of_rank(n, rank)) == rank


def test_a_rank_that_is_too_low() -> None:
    with pytest.raises(RankError, match="rank 7"):
        decompose(fixed_rule("quaternion", dtype=torch.float64), rank=7)
