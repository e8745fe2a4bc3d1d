"""The sliced vocabulary loss against torch's own."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from phmctl.nn import loss as loss_module
from phmctl.nn.loss import vocabulary_loss


@given(
    tokens=st.integers(1, 40),
    vocabulary=st.integers(2, 30),
    smoothing=st.sampled_from([0.0, 0.1, 0.4]),
    biased=st.booleans(),
    seed=st.integers(0, 999),
)
@settings(max_examples=40, deadline=None)
def test_loss_and_gradients_equal_cross_entropy(
    tokens: int, vocabulary: int, smoothing: float, biased: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    hidden = torch.randn(tokens, 5, dtype=torch.double, requires_grad=True)
    weight = torch.randn(vocabulary, 5, dtype=torch.double, requires_grad=True)
    bias = torch.randn(vocabulary, dtype=torch.double, requires_grad=True) if biased else None
    targets = torch.randint(0, vocabulary, (tokens,))
    inputs = [x for x in (hidden, weight, bias) if x is not None]
    loss, likelihood = vocabulary_loss(hidden, weight, bias, targets, smoothing=smoothing)
    logits = F.linear(hidden, weight, bias)
    wanted = F.cross_entropy(logits, targets, ignore_index=0, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(loss, wanted)
    torch.testing.assert_close(likelihood, F.cross_entropy(logits, targets, ignore_index=0, reduction="sum").detach())
    for ours, theirs in zip(
        torch.autograd.grad(3 * loss, inputs), torch.autograd.grad(3 * wanted, inputs), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


def test_slices_do_not_change_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = torch.randn(300, 8, dtype=torch.double), torch.randn(11, 8, dtype=torch.double)
    targets = torch.randint(0, 11, (300,))
    whole, _ = vocabulary_loss(hidden, weight, None, targets, smoothing=0.1)
    monkeypatch.setitem(loss_module._SLICE_ELEMENTS, "cpu", 11 * 64)
    sliced, _ = vocabulary_loss(hidden, weight, None, targets, smoothing=0.1)
    torch.testing.assert_close(sliced, whole)


def test_bfloat16_autocast_is_near_float32() -> None:
    torch.manual_seed(0)
    hidden = torch.randn(200, 32, requires_grad=True)
    weight = (0.2 * torch.randn(50, 32)).requires_grad_()
    targets = torch.randint(1, 50, (200,))
    exact, _ = vocabulary_loss(hidden, weight, None, targets)
    gradients = torch.autograd.grad(exact, (hidden, weight))
    with torch.autocast("cpu", torch.bfloat16):
        rough, _ = vocabulary_loss(hidden, weight, None, targets)
    rough_gradients = torch.autograd.grad(rough, (hidden, weight))
    assert rough.dtype == torch.float32
    torch.testing.assert_close(rough, exact, rtol=1e-2, atol=0)
    for rough_gradient, gradient in zip(rough_gradients, gradients, strict=True):
        assert (rough_gradient - gradient).norm() < 0.02 * gradient.norm()
