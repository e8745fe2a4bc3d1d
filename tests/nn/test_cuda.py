"""PHM layers on a GPU give what they give on a CPU. Skipped where there is none."""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import PHMLinear

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")

ALGEBRAS = [("real", 1), ("phm", 4), ("quaternion", 4), ("octonion", 8)]


def outcome(layer: nn.Module, x: Tensor, device: str, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Return a layer's output and gradients, as float32 on the CPU; `dtype` is autocast's."""
    layer = copy.deepcopy(layer).to(device)
    leaf = x.detach().to(device)  # a tensor of its own on the CPU too
    if leaf.is_floating_point():
        leaf.requires_grad_()
    with torch.autocast(device, dtype, enabled=dtype is not None):
        y = layer(leaf)
    (y.float() * torch.linspace(-1, 1, y.shape[-1], device=device)).sum().backward()
    assert y.device.type == device
    tensors: dict[str, Any] = {name: parameter.grad for name, parameter in layer.named_parameters()}
    if leaf.grad is not None:
        tensors["x"] = leaf.grad
    assert all(tensor.device.type == device for tensor in tensors.values())
    return {name: tensor.detach().float().cpu() for name, tensor in (tensors | {"y": y}).items()}


@pytest.mark.parametrize("tokens", [3, 500])
@pytest.mark.parametrize(("algebra", "n"), ALGEBRAS)
def test_embedding_equals_the_cpu(algebra: str, n: int, tokens: int) -> None:
    torch.manual_seed(0)
    layer, ids = PHMEmbedding(96, 64, n=n, algebra=algebra, padding_idx=0), torch.randint(0, 96, (tokens,))
    torch.testing.assert_close(outcome(layer, ids, "cuda"), outcome(layer, ids, "cpu"), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tokens", [3, 500])
@pytest.mark.parametrize(("algebra", "n"), ALGEBRAS)
def test_linear_equals_the_cpu_and_bfloat16_autocast_is_near(algebra: str, n: int, tokens: int) -> None:
    torch.manual_seed(0)
    layer, x = PHMLinear(64, 96, n=n, algebra=algebra), torch.randn(tokens, 64)
    exact = outcome(layer, x, "cpu")
    torch.testing.assert_close(outcome(layer, x, "cuda"), exact, rtol=1e-3, atol=1e-3)
    for name, value in outcome(layer, x, "cuda", torch.bfloat16).items():
        assert (value - exact[name]).norm() <= 0.03 * exact[name].norm(), name


@pytest.mark.parametrize("tokens", [5, 70_001])  # more tokens than a CUDA grid has places
def test_the_rank_product_equals_float64_on_the_cpu(tokens: int) -> None:
    torch.manual_seed(0)
    layer = PHMLinear(16, 24, n=4, execution="rank", rank=4)
    x = torch.randn(tokens, 16)
    exact = outcome(layer.double(), x.double(), "cpu")
    tensors = outcome(layer.float(), x, "cuda")
    for name, value in exact.items():  # gradients are sums over all tokens: the norm tells, single ones may cancel
        assert (tensors[name] - value).norm() <= 1e-3 * value.norm(), name
