"""The residual connection against a calculation by hand."""

import pytest
import torch
from torch import Tensor

from phmctl.nn.layers import Residual

X = torch.tensor([[[1.0, 2.0, 3.0, 6.0], [0.0, -1.0, 1.0, 4.0]]], dtype=torch.double)  # (1, 2, 4)
GAIN, SHIFT = torch.tensor([1.0, 2.0, 0.5, -1.0]).double(), torch.tensor([0.0, 1.0, -1.0, 0.5]).double()


def norm_by_hand(x: Tensor) -> Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * GAIN + SHIFT


def residual(*, pre_norm: bool, dropout: float = 0.0) -> Residual:
    made = Residual(4, dropout, pre_norm=pre_norm).double()
    with torch.no_grad():
        made.norm.weight.copy_(GAIN)
        made.norm.bias.copy_(SHIFT)
    return made


def square(x: Tensor) -> Tensor:
    return x.square()


def test_pre_norm_adds_the_sublayer_of_the_normed() -> None:
    torch.testing.assert_close(residual(pre_norm=True)(X, square), X + norm_by_hand(X).square())


def test_post_norm_norms_the_sum() -> None:
    torch.testing.assert_close(residual(pre_norm=False)(X, square), norm_by_hand(X + X.square()))


@pytest.mark.parametrize("pre_norm", [True, False])
def test_dropout_touches_the_branch_only_and_in_training_only(pre_norm: bool) -> None:
    made = residual(pre_norm=pre_norm, dropout=1.0)  # all of the branch is dropped
    torch.testing.assert_close(made(X, square), X if pre_norm else norm_by_hand(X))
    kept = residual(pre_norm=pre_norm)
    torch.testing.assert_close(made.eval()(X, square), kept(X, square))
