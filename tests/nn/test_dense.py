import copy

import pytest
import torch
from torch import nn

import phmctl
from phmctl import PHMLSTM, PHMEmbedding, PHMLinear
from phmctl.algebra.initialisation import learned_rule
from phmctl.assembly import build_classifier, build_transformer
from phmctl.errors import DimensionError, UserError
from phmctl.nn.kronecker_weight import KroneckerWeight
from phmctl.recipe.schema import EncoderClassifierSection, PairClassifierSection, TransformerSection

EXACT = {"atol": 1e-12, "rtol": 1e-12}
SMALL = {
    "algebra": "phm",
    "n": 4,
    "width": 16,
    "feed_forward": 32,
    "heads": 2,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "dropout": 0.0,
}


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


def test_no_random_number_is_drawn() -> None:
    layer, lstm = PHMLinear(8, 8, n=4), PHMLSTM(4, 4, n=2)
    state = torch.get_rng_state()
    layer.to_dense(), lstm.to_dense()
    assert torch.equal(torch.get_rng_state(), state)


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
    model = build_transformer(TransformerSection(kind="transformer", **SMALL, **options), 20, 24)
    source, target = torch.tensor([[4, 5, 3, 0]]), torch.tensor([[2, 7, 9]])
    dense = check(model, source, target)
    hidden = model(source, target)
    torch.testing.assert_close(dense.logits(hidden), model.logits(hidden), **EXACT)
    for got, expected in zip(dense.output_map(), model.output_map(), strict=True):
        torch.testing.assert_close(got, expected, **EXACT)
    assert (dense.source_embedding is dense.target_embedding) is (model.source_embedding is model.target_embedding)
    tokens = torch.tensor([[2], [5]])
    steps = [
        each.step(tokens, each.start(each.encode(source.repeat(2, 1)), beams=1, max_length=4))
        for each in (dense, model)
    ]
    torch.testing.assert_close(*steps, **EXACT)


def test_an_encoder_classifier() -> None:
    options = {name: value for name, value in SMALL.items() if not name.endswith("_layers")}
    check(
        build_classifier(EncoderClassifierSection(kind="encoder", **options), 20, 2),
        torch.tensor([[4, 5, 3, 0], [4, 4, 4, 4]]),
    )


@pytest.mark.parametrize("cell", ["standard", "as_printed"])
def test_a_pair_classifier(cell: str) -> None:
    model = build_classifier(
        PairClassifierSection(
            kind="lstm-pair", algebra="phm", n=4, width=8, embedding_width=8, hidden=8, dropout=0.0, cell=cell
        ),
        20,
        3,
    )
    check(model, torch.tensor([[4, 5, 3, 0], [4, 4, 4, 4]]), torch.tensor([[7, 0], [4, 5]]))


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
