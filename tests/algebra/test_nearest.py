import pytest
import torch

from phmctl.algebra.kronecker import kronecker_sum, nearest_sum
from phmctl.errors import DimensionError
from tests.references import kronecker_sum_reference


def draw(n: int, rows: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(n)
    A = torch.randn(n, n, n, dtype=torch.float64, generator=generator)
    return A, torch.randn(n, rows, columns, dtype=torch.float64, generator=generator)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_a_sum_of_n_products_is_found_again(n: int) -> None:
    weight = kronecker_sum_reference(*draw(n, 6, 7))
    A, S, error = nearest_sum(weight, n)
    torch.testing.assert_close(kronecker_sum(A, S), weight)
    assert error < 1e-12


def test_error_is_what_is_left() -> None:
    weight = torch.randn(12, 18, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    A, S, error = nearest_sum(weight, 2)
    left = (weight - kronecker_sum(A, S)).norm() / weight.norm()
    assert error == pytest.approx(left.item())
    assert 0.1 < error < 1


def test_no_small_change_is_nearer() -> None:
    weight = torch.randn(12, 18, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    A, S, _ = nearest_sum(weight, 3)
    A, S = A.requires_grad_(), S.requires_grad_()
    (weight - kronecker_sum(A, S)).square().sum().backward()
    assert A.grad.abs().max() < 1e-10
    assert S.grad.abs().max() < 1e-10


def test_rule_has_the_scale_of_an_initialised_one() -> None:
    weight = torch.randn(32, 64)
    A, _, _ = nearest_sum(weight, 4)
    assert A.square().sum(dim=0).mean().item() == pytest.approx(1, rel=1e-5)
    assert A.dtype == torch.float32


def test_a_weight_with_fewer_terms_than_n_keeps_every_rule_alive() -> None:
    weight = torch.randn(4, 4, dtype=torch.float64)
    A, S, error = nearest_sum(weight, 4)  # 16 × 1: a single term
    torch.testing.assert_close(kronecker_sum(A, S), weight)
    assert error == 0
    assert A.abs().sum(dim=(1, 2)).min() > 0


def test_zero_weight() -> None:
    A, S, error = nearest_sum(torch.zeros(4, 8), 2)
    assert error == 0
    assert kronecker_sum(A, S).abs().max() == 0


def test_n_that_does_not_divide() -> None:
    with pytest.raises(DimensionError, match="n = 3 does not divide in_features = 8 and out_features = 4"):
        nearest_sum(torch.zeros(4, 8), 3)
