"""What ``nn.LSTM`` takes besides a batch, a ``PHMLSTM`` takes too."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence, pack_sequence

from phmctl import PHMLSTM
from phmctl.errors import DimensionError, UserError

EXACT = {"atol": 1e-12, "rtol": 1e-12}


def pair() -> tuple[PHMLSTM, nn.LSTM]:
    model = PHMLSTM(4, 6, n=2, num_layers=2).double()
    return model, model.to_dense()


def start(*batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(2, *batch, 6).double(), torch.randn(2, *batch, 6).double()


def packed(*lengths: int, width: int = 4) -> PackedSequence:
    return pack_sequence([torch.randn(length, width).double() for length in lengths], enforce_sorted=False)


@pytest.mark.parametrize("state", [None, start(3)])
def test_a_packed_sequence(state: tuple[Tensor, Tensor] | None) -> None:
    (model, twin), x = pair(), packed(2, 5, 3)
    (output, final), (wanted, wanted_final) = model(x, state), twin(x, state)
    assert isinstance(output, PackedSequence)
    for one, other in zip((*output, *final), (*wanted, *wanted_final), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


@pytest.mark.parametrize("state", [None, start()])
def test_one_sequence_without_a_batch(state: tuple[Tensor, Tensor] | None) -> None:
    (model, twin), x = pair(), torch.randn(5, 4).double()
    (output, final), (wanted, wanted_final) = model(x, state), twin(x, state)
    for one, other in zip((output, *final), (wanted, *wanted_final), strict=True):
        torch.testing.assert_close(one, other, **EXACT)


def test_gradients_go_through_packed_sequences() -> None:
    model, twin = pair()
    x = packed(2, 4)
    grads = []
    for layer in (model, twin):
        rows = x.data.clone().requires_grad_()
        layer(x._replace(data=rows))[0].data.square().sum().backward()
        grads.append(rows.grad)
    torch.testing.assert_close(*grads, **EXACT)


def test_models_may_flatten_its_parameters() -> None:
    model, _ = pair()
    before = {name: part.clone() for name, part in model.state_dict().items()}
    model.flatten_parameters()
    torch.testing.assert_close(dict(model.state_dict()), before)


def test_mistakes() -> None:
    model, _ = pair()
    with pytest.raises(DimensionError, match=r"input of shape \(2, 3, 5\) is not"):
        model(packed(3, 1, width=5))
    with pytest.raises(DimensionError, match=r"state h has shape \(2, 4, 6\), not .* = \(2, 2, 6\)"):
        model(packed(3, 1), start(4))
    with pytest.raises(UserError, match="has its lengths"):
        model(packed(3, 1), torch.tensor([3, 1]))
    with pytest.raises(UserError, match="cannot be compiled"):
        torch.func.grad(lambda h: model(packed(3, 1), (h, h))[0].data.sum())(start(2)[0])
