import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import phmctl
from phmctl import PHMLSTM, PHMEmbedding, PHMLinear
from phmctl.algebra.initialisation import learned_rule
from phmctl.assembly import build_classifier, build_transformer
from phmctl.errors import DimensionError, UserError
from phmctl.nn.linear import KroneckerWeight, TwoFactorLinear
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection, TransformerSection

EXACT = {"atol": 1e-12, "rtol": 1e-12}
SMALL = {"algebra": "phm", "n": 4, "width": 16, "feed_forward": 32, "heads": 2, "dropout": 0.0}


@pytest.mark.parametrize(("algebra", "n"), [("phm", 4), ("quaternion", 4), ("real", 1)])
@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_map(algebra: str, n: int, bias: bool) -> None:
    layer = PHMLinear(8, 12, n=n, bias=bias, algebra=algebra, dtype=torch.float64).eval()
    dense = layer.to_dense()
    assert type(dense) is nn.Linear
    assert not dense.training
    assert (dense.bias is None) is not bias
    x = torch.randn(3, 8, dtype=torch.float64)
    torch.testing.assert_close(dense(x), layer(x), **EXACT)
    with torch.no_grad():
        dense.weight.zero_()
    assert layer.weight.any()  # its parameters are its own


def test_a_table_with_a_padding_row_and_a_rounded_vocabulary() -> None:
    table = PHMEmbedding(12, 8, n=4, padding_idx=0, dtype=torch.float64)
    dense = table.to_dense(10)
    assert type(dense) is nn.Embedding
    assert dense.weight.shape == (10, 8)
    ids = torch.tensor([[0, 9], [3, 0]])
    torch.testing.assert_close(dense(ids), table(ids), **EXACT)
    with pytest.raises(DimensionError, match="13"):
        table.to_dense(13)


@pytest.mark.parametrize("gates", ["separate", "fused"])
@pytest.mark.parametrize("bias", [True, False])
def test_an_lstm(gates, bias: bool) -> None:
    layer = PHMLSTM(8, 4, n=2, num_layers=2, gates=gates, bias=bias).double()
    dense = layer.to_dense()
    assert type(dense) is nn.LSTM
    x, state = torch.randn(3, 5, 8).double(), (torch.randn(2, 3, 4).double(), torch.randn(2, 3, 4).double())
    (y, (h, c)), (wanted, (wanted_h, wanted_c)) = dense(x, state), layer(x, None, state)
    for got, expected in ((y, wanted), (h, wanted_h), (c, wanted_c)):
        torch.testing.assert_close(got, expected, **EXACT)


def test_a_cell_that_torch_has_not() -> None:
    with pytest.raises(UserError, match="as_printed"):
        PHMLSTM(4, 4, n=2, cell="as_printed").to_dense()


def check(model: nn.Module, *inputs: torch.Tensor) -> nn.Module:
    """Check that the dense copy of a model gives what the model does, and has no PHM map left."""
    model = model.double().eval()
    dense = phmctl.to_dense(model)
    assert not any(isinstance(module, KroneckerWeight) for module in dense.modules())
    assert any(isinstance(module, KroneckerWeight) for module in model.modules())
    torch.testing.assert_close(dense(*inputs), model(*inputs), **EXACT)
    return dense


@pytest.mark.parametrize(
    "options",
    [
        {"embeddings": "phm", "share_embeddings": True, "generator": "tied"},
        {"projections": "packed", "generator": "phm"},
        {"projections": "separate", "rules": "model", "parametrization": "factors"},
    ],
)
def test_a_transformer(options) -> None:
    model = build_transformer(TransformerSection(**SMALL, encoder_layers=1, decoder_layers=1, **options), 20, 24)
    source, target = torch.tensor([[4, 5, 3, 0]]), torch.tensor([[2, 7, 9]])
    dense = check(model, source, target)
    hidden = model(source, target)
    torch.testing.assert_close(dense.logits(hidden), model.logits(hidden), **EXACT)
    for got, expected in zip(dense.output(hidden)[1:], model.output(hidden)[1:], strict=True):
        torch.testing.assert_close(got, expected, **EXACT)
    assert (dense.source_embedding is dense.target_embedding) is (model.source_embedding is model.target_embedding)
    tokens = torch.tensor([[2], [5]])
    starts = [each.start(each.encode(source.repeat(2, 1)), beams=1, max_length=4) for each in (dense, model)]
    steps = [each.step(tokens, start) for each, start in zip((dense, model), starts, strict=True)]
    torch.testing.assert_close(*steps, **EXACT)


def test_an_encoder_classifier() -> None:
    model = build_classifier(EncoderClassifierSection(kind="encoder", **SMALL), 20, 2)
    check(model, torch.tensor([[4, 5, 3, 0], [4, 4, 4, 4]]))


@pytest.mark.parametrize("cell", ["standard", "as_printed"])
def test_a_pair_classifier(cell: str) -> None:
    sizes = {"width": 8, "embedding_width": 8, "hidden": 8, "dropout": 0.0}
    section = PairClassifierSection(kind="lstm-pair", algebra="phm", n=4, cell=cell, **sizes)
    check(build_classifier(section, 20, 3), torch.tensor([[4, 5, 3, 0], [4, 4, 4, 4]]), torch.tensor([[7, 0], [4, 5]]))


class Shared(nn.Module):
    """A map in two places, a map of the same tensors, a table that is a dense layer's weight, a shared bias."""

    def __init__(self) -> None:
        super().__init__()
        self.one = PHMLinear(8, 8, n=4)
        self.again = self.one
        self.alike = PHMLinear(8, 8, n=4)
        self.alike.A, self.alike.S, self.alike.bias = self.one.A, self.one.S, self.one.bias
        self.other = PHMLinear(8, 8, n=4, rule=self.one.A)
        self.table = PHMEmbedding(20, 8, n=1)
        self.head = nn.Linear(8, 20)
        self.head.weight = self.table.weight


def test_what_was_one_stays_one() -> None:
    model = Shared()
    dense = phmctl.to_dense(model)
    assert dense.one is dense.again
    assert dense.one.weight is dense.alike.weight
    assert dense.one.bias is dense.alike.bias
    assert dense.one.weight is not dense.other.weight
    assert dense.head.weight is dense.table.weight
    assert isinstance(model.one, PHMLinear)  # a copy was changed
    assert dense.head.weight is not model.head.weight


def test_frozen_parts_stay_frozen() -> None:
    layer = PHMLinear(8, 8, n=4)
    layer.S.requires_grad_(False)
    assert phmctl.to_dense(layer).weight.requires_grad  # A learns
    layer.A.requires_grad_(False)
    assert not phmctl.to_dense(layer).weight.requires_grad


def test_frozen_maps_of_two_factors_and_lstms_stay_frozen() -> None:
    lstm = PHMLSTM(4, 4, n=2)
    lstm.layers[0].from_hidden.requires_grad_(False)
    dense = lstm.to_dense()
    assert [name for name, part in dense.named_parameters() if not part.requires_grad] == ["weight_hh_l0"]
    thin = TwoFactorLinear(8, 8, inner=2, blocks=1).requires_grad_(False)
    assert not any(part.requires_grad for part in phmctl.to_dense(nn.Sequential(thin)).parameters())


def test_parametrized_layers_stay_what_they_are() -> None:
    x = torch.randn(3, 8).double()
    layers = [PHMLinear(8, 8, n=4, algebra="quaternion", dtype=torch.float64) for _ in range(4)]
    alike = nn.ModuleList(parametrizations.weight_norm(layer, "S") for layer in layers)
    alike[2].parametrizations.S.original0 = alike[0].parametrizations.S.original0
    alike[2].parametrizations.S.original1 = alike[0].parametrizations.S.original1
    dense = phmctl.to_dense(alike)
    for layer, other in zip(alike, dense, strict=True):
        torch.testing.assert_close(other(x), layer(x), **EXACT)
    assert [other.weight is dense[0].weight for other in dense] == [True, False, True, False]
    assert all(other.weight.requires_grad for other in dense)


def test_what_shares_tensors_by_another_parametrization_is_not_shared() -> None:
    layers, x = nn.ModuleList(PHMLinear(8, 8, n=4) for _ in range(2)), torch.randn(3, 8)
    layers[1].A, layers[1].S = layers[0].A, layers[0].S
    for layer, function in zip(layers, (nn.Tanh(), nn.Sigmoid()), strict=True):
        parametrize.register_parametrization(layer, "S", function)
    layers[1].parametrizations.S.original = layers[0].parametrizations.S.original
    for layer, other in zip(layers, phmctl.to_dense(layers), strict=True):
        torch.testing.assert_close(other(x), layer(x))


@pytest.mark.parametrize(("name", "n"), [("bias", 4), ("weight", 1)])
def test_other_parametrized_parts(name: str, n: int) -> None:
    layer, x = PHMLinear(8, 8, n=n), torch.randn(3, 8)
    parametrize.register_parametrization(layer, name, nn.Tanh())
    torch.testing.assert_close(phmctl.to_dense(layer)(x), layer(x))


def test_the_padding_of_a_table_without_a_rule() -> None:
    table, ids = PHMEmbedding(8, 4, n=1, padding_idx=0), torch.arange(8)
    torch.testing.assert_close(phmctl.to_dense(table)(ids), table(ids))


def test_in_place() -> None:
    model = nn.Sequential(PHMLinear(8, 8, n=4), nn.ReLU())
    parts = copy.copy(model._modules)
    assert phmctl.to_dense(model, inplace=True) is model
    assert type(model[0]) is nn.Linear
    assert model[1] is parts["1"]
    root = phmctl.to_dense(PHMLinear(8, 8, n=4), inplace=True)
    assert type(root) is nn.Linear


def test_it_learns_as_any_dense_model() -> None:
    dense = phmctl.to_dense(nn.Sequential(PHMLinear(8, 8, n=4, rule=learned_rule(4))))
    dense(torch.randn(2, 8)).sum().backward()
    assert dense[0].weight.grad.any()
