"""Multiplications as counted by hand."""

import pytest
import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from phmctl.accounting.multiplications import multiplications
from phmctl.backends.products import preferred_library
from phmctl.nn.attention import MultiHeadAttention
from phmctl.nn.build import LinearBuilder
from phmctl.nn.linear import PHMLinear

T, D, K, N, R = 32, 64, 128, 4, 7  # tokens, in, out, n, rank


def trained(layer: torch.nn.Module, x: Tensor) -> int:
    return multiplications(lambda: layer(x).sum().backward())


@pytest.mark.parametrize("library", ["mkl", "onednn"])
def test_a_dense_map_takes_three_products_to_train(library: str) -> None:
    large = 4 * D  # rows, in and out for which oneDNN is taken
    layer, x = PHMLinear(large, large, n=1), torch.ones(large, large, requires_grad=True)
    with preferred_library(library):
        assert multiplications(lambda: layer(x)) == large**3
        assert trained(layer, x) == 3 * large**3
        with torch.inference_mode():
            assert multiplications(lambda: layer(x.detach())) == large**3


def test_a_phm_map_takes_what_its_execution_takes() -> None:
    x = torch.ones(T, D, requires_grad=True)
    built = N * D * K  # H, by the rule
    dense = PHMLinear(D, K, n=N, execution="dense")
    assert multiplications(lambda: dense(x)) == T * D * K + built
    assert trained(dense, x) == 3 * T * D * K + 3 * built
    ranked = PHMLinear(D, K, n=N, execution="rank", parametrization="factors", rank=R)
    blocks = N * R * (D // N) * (K // N)  # W and the components
    forward = T * R * (D * K // N**2 + D + K)
    assert multiplications(lambda: ranked(x)) == forward + blocks
    backward = T * R * (2 * D * K // N**2 + 3 * D + 2 * K)
    assert trained(ranked, x) == forward + backward + 3 * blocks


def test_attention_takes_its_maps_and_two_products_of_all_pairs() -> None:
    attention = MultiHeadAttention(LinearBuilder("real", 1), D, D, 4).eval()
    x = torch.ones(2, T, D)
    with torch.inference_mode():
        assert multiplications(lambda: attention(x)) == 2 * T * 4 * D * D + 2 * (2 * T * T * D)


def test_torch_s_own_counter_counts_the_operators() -> None:
    x, layer = torch.randn(T, D, requires_grad=True), PHMLinear(D, K, n=4, parametrization="factors", execution="rank")
    with FlopCounterMode(display=False) as counter:
        layer(x).sum().backward()
    found = counter.get_flop_counts()["Global"]
    R, mixing = len(layer.V), D + K
    assert found[torch.ops.phmctl.rank_product] == 2 * T * R * (D * K // 16 + mixing)
    assert found[torch.ops.phmctl.rank_product_backward] == 2 * T * R * (2 * D * K // 16 + 3 * D + 2 * K)
    with FlopCounterMode(display=False) as counter:
        _ = layer.weight
    assert counter.get_flop_counts()["Global"][torch.ops.phmctl.kronecker_sum] == 2 * 4 * D * K
