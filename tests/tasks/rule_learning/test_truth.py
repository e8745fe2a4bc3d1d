import math

import pytest
import torch

from phmctl.algebra.kronecker import fixed_rule
from phmctl.tasks.rule_learning.truth import draw_rotation, draw_samples, draw_truth
from tests.references import kronecker_sum_reference, multiply

from .recipes import data

PRODUCTS = ["rotation-3d", "hamilton", "octonion"]


@pytest.mark.parametrize("seed", range(5))
def test_a_rotation_keeps_lengths_and_hands(seed: int) -> None:
    W = draw_rotation(torch.Generator().manual_seed(seed))
    torch.testing.assert_close(W @ W.t(), torch.eye(3, dtype=torch.float64))
    assert torch.linalg.det(W).item() == pytest.approx(1)


def test_rotations_favour_no_direction() -> None:
    random = torch.Generator().manual_seed(1)
    drawn = torch.stack([draw_rotation(random) for _ in range(2000)])
    assert drawn.mean(dim=0).abs().max() < 0.05  # each entry is in [−1, 1] with a deviation of 1/√3
    assert drawn.diagonal(dim1=1, dim2=2).sum(dim=1).square().mean().item() == pytest.approx(1, abs=0.1)  # of SO(3)


def test_one_rotation_turns_every_point() -> None:
    truth = draw_truth(data("rotation-3d", dims=5))
    W = truth.A[0]
    points = torch.randn(3, 5, dtype=torch.float64)  # a coordinate a row, as the layer has its features
    torch.testing.assert_close((truth.H @ points.flatten()).view(3, 5), W @ points)


def test_the_paper_s_case_is_one_rotation_matrix() -> None:
    truth = draw_truth(data("rotation-3d", dims=1))
    torch.testing.assert_close(truth.H, truth.A[0], rtol=0, atol=0)
    assert torch.linalg.det(truth.H).item() == pytest.approx(1)


@pytest.mark.parametrize(("product", "algebra"), [("hamilton", "quaternion"), ("octonion", "octonion")])
def test_targets_are_sums_of_products_from_the_left(product: str, algebra: str) -> None:
    section = data(product, dims=3)
    truth, n = draw_truth(section), section.components
    samples = draw_samples(truth, "train", 20, 1)
    factors = truth.S.permute(1, 2, 0)  # (s, t, n)
    inputs = samples.inputs.double().view(20, n, 3).transpose(1, 2)  # (N, t, n)
    products = multiply(fixed_rule(algebra, dtype=torch.float64), factors, inputs[:, None]).sum(dim=2)  # (N, s, n)
    targets = samples.targets.view(20, n, 3).transpose(1, 2).double()
    torch.testing.assert_close(targets, products, atol=1e-6, rtol=1e-6)
    assert not torch.allclose(multiply(fixed_rule(algebra).double(), inputs[:, None], factors).sum(dim=2), targets)


@pytest.mark.parametrize("product", PRODUCTS)
def test_targets_have_about_unit_variance(product: str) -> None:
    truth = draw_truth(data(product, dims=4))
    torch.testing.assert_close(truth.H, kronecker_sum_reference(truth.A, truth.S))
    samples = draw_samples(truth, "train", 2000, 1)
    assert samples.inputs.shape == samples.targets.shape == (2000, truth.H.shape[1])
    assert math.sqrt(samples.targets.square().mean().item()) == pytest.approx(1, abs=0.15)
    assert samples.targets.dtype == torch.float32


@pytest.mark.parametrize("product", PRODUCTS)
def test_the_seed_decides_everything(product: str) -> None:
    one, same, other = (draw_truth(data(product, seed=seed)) for seed in (1, 1, 2))
    assert torch.equal(one.H, same.H)
    assert not torch.equal(one.H, other.H)
    first, again = (draw_samples(one, "train", 9, 1) for _ in range(2))
    assert torch.equal(first.inputs, again.inputs)
    assert torch.equal(first.targets, again.targets)
    for split, seed in (("valid", 1), ("test", 1), ("train", 2)):
        assert not torch.isin(draw_samples(one, split, 9, seed).inputs, first.inputs).any()
