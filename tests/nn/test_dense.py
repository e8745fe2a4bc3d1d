import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import phmctl
from phmctl import PHMLSTM, PHMEmbedding, PHMLinear
from phmctl.nn.linear import LowRankLinear

EXACT = {"atol": 1e-12, "rtol": 1e-12}


@pytest.mark.parametrize(("algebra", "n"), [("phm", 4), ("quaternion", 4), ("real", 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_map(algebra: str, n: int, bias: bool) -> None:
    layer = PHMLinear(8, 12, n=n, bias=bias, algebra=algebra, dtype=torch.float64).eval()
    dense = phmctl.to_dense(layer)
    assert type(dense) is nn.Linear
    assert not dense.training
    assert (dense.bias is None) is not bias
    x = torch.randn(3, 8, dtype=torch.float64)
    torch.testing.assert_close(dense(x), layer(x), **EXACT)
    with torch.no_grad():
        dense.weight.zero_()
    assert layer.weight.any()  # its parameters are its own


class Shared(nn.Module):
    """A map in two places, a map of the same tensors, a table that is a dense layer's weight, a shared bias."""

    def __init__(self) -> None:
        super().__init__()
        self.first = PHMLinear(8, 8, n=4)
        self.same = self.first
        self.alike = PHMLinear(8, 8, n=4)
        self.alike.A, self.alike.S, self.alike.bias = self.first.A, self.first.S, self.first.bias
        self.twin = PHMLinear(8, 8, n=4)
        self.twin.share_rule(self.first)
        self.table = PHMEmbedding(20, 8, n=1)
        self.head = nn.Linear(8, 20)
        self.head.weight = self.table.weight


def test_shared_modules_and_tensors_stay_shared() -> None:
    model = Shared()
    dense = phmctl.to_dense(model)
    assert dense.first is dense.same
    assert dense.first.weight is dense.alike.weight
    assert dense.first.bias is dense.alike.bias
    assert dense.first.weight is not dense.twin.weight
    assert dense.head.weight is dense.table.weight
    assert isinstance(model.first, PHMLinear)  # a copy was changed
    assert dense.head.weight is not model.head.weight


@pytest.mark.parametrize("order", ["table, head", "head, table"])
def test_a_map_stays_tied_to_a_table_with_padding(order: str) -> None:
    table, head = PHMEmbedding(16, 8, n=4, padding_idx=0), PHMLinear(8, 16, False, n=4)
    head.A, head.S = table.A, table.S
    parts = {"table": table, "head": head}
    dense = phmctl.to_dense(nn.ModuleDict({name: parts[name] for name in order.split(", ")}))
    assert dense["table"].weight is dense["head"].weight
    assert not dense["head"].weight[0].any()
    torch.testing.assert_close(dense["table"].weight[1:], table.weight[1:])


def test_frozen_parts_stay_frozen() -> None:
    layer = PHMLinear(8, 8, n=4)
    layer.S.requires_grad_(False)
    assert phmctl.to_dense(layer).weight.requires_grad  # A learns
    layer.A.requires_grad_(False)
    assert not phmctl.to_dense(layer).weight.requires_grad
    lstm = PHMLSTM(4, 4, n=2)
    lstm.layers[0].from_hidden.requires_grad_(False)
    dense = lstm.to_dense()
    assert [name for name, part in dense.named_parameters() if not part.requires_grad] == ["weight_hh_l0"]
    thin = LowRankLinear(8, 8, rank=2).requires_grad_(False)
    assert not any(part.requires_grad for part in phmctl.to_dense(nn.Sequential(thin)).parameters())


def test_parametrized_layers_stay_what_they_are() -> None:
    x = torch.randn(3, 8).double()
    layers = [PHMLinear(8, 8, n=4, algebra="quaternion", dtype=torch.float64) for _ in range(4)]
    alike = nn.ModuleList(parametrizations.weight_norm(layer, "S") for layer in layers)
    alike[2].parametrizations.S.original0 = alike[0].parametrizations.S.original0
    alike[2].parametrizations.S.original1 = alike[0].parametrizations.S.original1
    dense = phmctl.to_dense(alike)
    for layer, twin in zip(alike, dense, strict=True):
        torch.testing.assert_close(twin(x), layer(x), **EXACT)
    assert [twin.weight is dense[0].weight for twin in dense] == [True, False, True, False]
    assert all(twin.weight.requires_grad for twin in dense)


def test_in_place() -> None:
    model = nn.Sequential(PHMLinear(8, 8, n=4), nn.ReLU())
    parts = copy.copy(model._modules)
    assert phmctl.to_dense(model, inplace=True) is model
    assert type(model[0]) is nn.Linear
    assert model[1] is parts["1"]
    root = phmctl.to_dense(PHMLinear(8, 8, n=4), inplace=True)
    assert type(root) is nn.Linear


def test_maps_with_different_parametrizations_of_the_same_tensors_are_not_shared() -> None:
    layers, x = nn.ModuleList(PHMLinear(8, 8, n=4) for _ in range(2)), torch.randn(3, 8)
    layers[1].A, layers[1].S = layers[0].A, layers[0].S
    for layer, function in zip(layers, (nn.Tanh(), nn.Sigmoid()), strict=True):
        parametrize.register_parametrization(layer, "S", function)
    layers[1].parametrizations.S.original = layers[0].parametrizations.S.original
    for layer, twin in zip(layers, phmctl.to_dense(layers), strict=True):
        torch.testing.assert_close(twin(x), layer(x))
