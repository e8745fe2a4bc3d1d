"""The one layer loop: layers in order, context for each, a step with each layer's own past; named as a ModuleList."""

import pytest
import torch
from torch import Tensor, nn

from phmctl.models.transformer import Stack


class Affine(nn.Module):
    """2x + b + context, so that the order shows."""

    def __init__(self, b: float) -> None:
        super().__init__()
        self.b = nn.Parameter(torch.tensor(b))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        return 2 * x + self.b + context

    def step(self, x: Tensor, state: list[float], layer: int) -> Tensor:
        return 2 * x + self.b + state[layer]


def test_layers_are_applied_in_order() -> None:
    stack = Stack([Affine(1.0), Affine(5.0)])
    assert stack(torch.tensor(1.0), torch.tensor(0.5)).item() == 2 * (2 + 1 + 0.5) + 5 + 0.5
    # Each step has its own layer's past.
    assert stack.step(torch.tensor(1.0), [10.0, 100.0]).item() == 2 * (2 + 1 + 10) + 5 + 100  # type: ignore[arg-type]


def test_it_names_and_counts_its_layers_as_a_module_list_does() -> None:
    layers = [Affine(1.0), Affine(5.0), Affine(7.0)]
    stack, peer = Stack(layers), nn.ModuleList(layers)
    assert stack.state_dict().keys() == peer.state_dict().keys()
    assert list(stack) == layers
    assert len(stack) == 3
    assert stack[1] is layers[1]
    assert stack[-1] is layers[2]
    with pytest.raises(IndexError):
        stack[3]


def test_no_layers_change_nothing() -> None:
    x = torch.randn(2, 3)
    assert Stack([])(x) is x
