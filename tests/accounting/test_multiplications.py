"""Multiplications as counted by hand."""

import torch
from torch import Tensor

from phmctl.accounting.ledger import multiplications
from phmctl.nn.build import LinearBuilder
from phmctl.nn.layers import MultiHeadAttention
from phmctl.nn.linear import PHMLinear

T, D, K, N, R = 32, 64, 128, 4, 7  # tokens, in, out, n, rank


def trained(layer: torch.nn.Module, x: Tensor) -> int:
    return multiplications(lambda: layer(x).sum().backward())


def test_a_dense_map_takes_three_products_to_train() -> None:
    layer, x = PHMLinear(D, D, n=1), torch.ones(T, D, requires_grad=True)
    assert multiplications(lambda: layer(x)) == T * D * D
    assert trained(layer, x) == 3 * T * D * D
    with torch.inference_mode():
        assert multiplications(lambda: layer(x.detach())) == T * D * D


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
