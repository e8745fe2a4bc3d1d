"""The sliced vocabulary loss against torch's own."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional as F

from phmctl.nn import loss as loss_module
from phmctl.nn.loss import label_loss, vocabulary_loss


@given(
    tokens=st.integers(1, 40),
    vocabulary=st.integers(2, 30),
    smoothing=st.sampled_from([0.0, 0.1, 0.4]),
    biased=st.booleans(),
    seed=st.integers(0, 999),
)
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
    expected = F.cross_entropy(logits, targets, ignore_index=0, label_smoothing=smoothing, reduction="sum")
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(likelihood, F.cross_entropy(logits, targets, ignore_index=0, reduction="sum").detach())
    torch.testing.assert_close(torch.autograd.grad(3 * loss, inputs), torch.autograd.grad(3 * expected, inputs))


def test_slices_do_not_change_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight = torch.randn(300, 8, dtype=torch.double), torch.randn(11, 8, dtype=torch.double)
    targets = torch.randint(0, 11, (300,))
    unsliced, _ = vocabulary_loss(hidden, weight, None, targets, smoothing=0.1)
    monkeypatch.setitem(loss_module._SLICE_ELEMENTS, "cpu", 11 * 64)
    sliced, _ = vocabulary_loss(hidden, weight, None, targets, smoothing=0.1)
    torch.testing.assert_close(sliced, unsliced)


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


@pytest.mark.parametrize("context", [torch.no_grad, torch.inference_mode])
def test_validation_computes_no_gradient(context, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights want gradients under no_grad too, as far as a function of autograd is told."""
    hidden, weight = torch.randn(40, 8), torch.randn(11, 8, requires_grad=True)
    targets = torch.randint(0, 11, (40,))
    expected, _ = vocabulary_loss(hidden, weight, None, targets, smoothing=0.1)
    monkeypatch.setattr(loss_module, "_loss_and_gradient", lambda *_: pytest.fail("a gradient was computed"))
    with context():
        actual, likelihood = vocabulary_loss(hidden, weight, None, targets, smoothing=0.1)
    torch.testing.assert_close(actual, expected.detach())
    torch.testing.assert_close(
        likelihood, F.cross_entropy(hidden @ weight.t(), targets, ignore_index=0, reduction="sum")
    )


@pytest.mark.parametrize("ignore", [0, -100])
def test_padding_has_no_gradient(ignore: int) -> None:
    hidden, weight = torch.randn(3, 10, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    targets = torch.randint(1, 11, (3, 10))
    targets[:, 6:] = ignore
    vocabulary_loss(hidden, weight, None, targets, ignore=ignore)[0].backward()
    assert hidden.grad[:, 6:].abs().sum() == 0 < hidden.grad[:, :6].abs().sum()


def test_an_ignored_id_is_no_column() -> None:
    """Where no row is left out beforehand, as on a GPU."""
    logits, targets = torch.randn(4, 11), torch.tensor([3, -100, 5, -100])
    expected = F.cross_entropy(logits, targets, reduction="sum", label_smoothing=0.1)
    sums, gradient = loss_module._loss_and_gradient(logits, targets, 0.1, -100)
    torch.testing.assert_close(sums[0], expected)
    assert not gradient[[1, 3]].any()


def test_only_padding_has_no_loss() -> None:
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(11, 8, requires_grad=True)
    loss, likelihood = vocabulary_loss(hidden, weight, None, torch.zeros(4, dtype=torch.int64), smoothing=0.1)
    loss.backward()
    assert (loss.item(), likelihood.item(), hidden.grad.abs().sum().item()) == (0, 0, 0)


@pytest.mark.parametrize("wants", [(True, False), (False, True)])
def test_only_the_gradients_that_are_wanted(wants: tuple[bool, bool]) -> None:
    hidden, weight = torch.randn(40, 8).requires_grad_(wants[0]), torch.randn(11, 8).requires_grad_(wants[1])
    vocabulary_loss(hidden, weight, None, torch.randint(1, 11, (40,)))[0].backward()
    assert (hidden.grad is not None, weight.grad is not None) == wants


def test_the_meta_device_gives_the_shapes() -> None:
    hidden, weight = (torch.empty(size, 5, device="meta", requires_grad=True) for size in (3, 7))
    loss, _ = vocabulary_loss(hidden, weight, None, torch.ones(3, dtype=torch.long, device="meta"))
    loss.backward()
    assert weight.grad is not None
    assert weight.grad.shape == (7, 5)


def test_the_loss_of_labels_is_float32_at_least() -> None:
    logits, labels = torch.randn(4, 3), torch.tensor([0, 1, 2, 0])
    assert label_loss(logits.bfloat16(), labels).dtype == torch.float32
    assert label_loss(logits.double(), labels).dtype == torch.float64
