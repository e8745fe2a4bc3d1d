import math

import pytest
import torch
from torch import nn

from phmctl.algebra.initialisation import (
    initialise_components_,
    initialise_dense_,
    initialise_factors_,
    initialise_rule_,
)
from phmctl.algebra.kronecker import kronecker_sum
from phmctl.algebra.rank_product import Factors, recompose

D, K = 240, 480  # divisible by 1, 2, 3, 4, 5, 8, 16


@pytest.mark.parametrize(
    ("scheme", "reference"),
    [
        ("default", lambda w: nn.init.kaiming_uniform_(w, a=math.sqrt(5))),
        ("xavier_uniform", nn.init.xavier_uniform_),
        ("standard_normal", nn.init.normal_),
    ],
)
def test_dense_schemes_equal_torchs(scheme: str, reference) -> None:
    torch.manual_seed(5)
    expected = reference(torch.empty(K, D))
    torch.manual_seed(5)
    weight = torch.empty(K, D)
    initialise_dense_(weight, scheme, D, K)
    torch.testing.assert_close(weight, expected)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_fibres_of_a_learned_rule_are_random_unit_vectors(n: int) -> None:
    torch.manual_seed(0)
    A = torch.empty(n, n, n)
    fibres = []
    for _ in range(400):
        initialise_rule_(A)
        torch.testing.assert_close(A.square().sum(dim=0), torch.ones(n, n))
        fibres.append(A.reshape(n, -1).clone())
    covariance = torch.cat(fibres, dim=1).cov()
    torch.testing.assert_close(covariance, torch.eye(n) / n, atol=0.06, rtol=0)


def test_the_scale_of_a_rule_does_not_change_the_variance_of_h() -> None:
    torch.manual_seed(0)
    A = 7 * torch.randn(4, 4, 4)
    S = torch.empty(4, K // 4, D // 4)
    initialise_components_(S, A, "embedding", D, K)
    assert kronecker_sum(A, S).var().item() == pytest.approx(1 / D, rel=0.05)


@pytest.mark.parametrize(("n", "rank"), [(4, 4), (4, 7), (8, 12), (8, 5)])
def test_factors_are_initialised_with_tight_frames(n: int, rank: int) -> None:
    """U and V have equal singular values, and the fibres have unit length on average."""
    W, U, V = torch.empty(n, rank), torch.empty(n, rank), torch.empty(rank, n)
    initialise_factors_(W, U, V)
    for frame in (U, V.T):
        values = torch.linalg.svdvals(frame)
        torch.testing.assert_close(values, values[0].expand_as(values))
    fibres = recompose(Factors(W, U, V)).square().sum(dim=0).mean()
    assert fibres.item() == pytest.approx(1.0, rel=1e-4)
