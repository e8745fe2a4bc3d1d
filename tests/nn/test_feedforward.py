"""The feed-forward network against its two maps by hand."""

import pytest
import torch

from phmctl.nn.build import LinearBuilder
from phmctl.nn.layers import FeedForward


@pytest.mark.parametrize(("algebra", "n"), [("real", 1), ("phm", 2), ("quaternion", 4)])
@pytest.mark.parametrize("training", [True, False])
def test_it_is_two_maps_around_a_relu(algebra: str, n: int, training: bool) -> None:
    torch.manual_seed(0)
    layer = FeedForward(LinearBuilder(algebra, n), 8, 16).double().train(training)
    with torch.no_grad():
        for bias in (layer.expand.bias, layer.contract.bias):
            bias.normal_()
    x = torch.randn(2, 3, 8, dtype=torch.double)
    hidden = x @ layer.expand.weight.t() + layer.expand.bias  # (2, 3, 16)
    expected = hidden.clamp(min=0) @ layer.contract.weight.t() + layer.contract.bias
    torch.testing.assert_close(layer(x), expected)
    assert (layer.expand.weight.shape, layer.contract.weight.shape) == ((16, 8), (8, 16))


def test_dropout_is_on_the_hidden_activations_in_training_only() -> None:
    layer = FeedForward(LinearBuilder("phm", 2), 8, 16, dropout=1.0)
    with torch.no_grad():
        layer.contract.bias.normal_()
    x = torch.randn(3, 8)
    torch.testing.assert_close(layer(x), layer.contract.bias.expand(3, 8))  # nothing passes but the bias
    assert not torch.allclose(layer.eval()(x), layer.contract.bias.expand(3, 8))
