"""Weights that get a share of the dense weight's numbers: products of low rank."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils.parametrize import register_parametrization

import phmctl
from phmctl import Kronecker
from phmctl.errors import DimensionError, UserError
from tests.references import Watch

CLOSE = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("share", [0.5, 0.25, 0.1])
@pytest.mark.parametrize("shape", [(96, 64), (64, 160), (50, 96), (35, 40)])
def test_a_map_has_the_share_and_is_what_the_definition_says(share: float, shape: Any) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(*shape[::-1], dtype=torch.float64)
    converted, report = phmctl.convert(layer, share=share, select="*")
    row, chain = report.rows[0], converted.parametrizations.weight
    R, L = chain.parameters()
    H = L @ R
    assert row.after == sum(tensor.numel() for tensor in chain.parameters())
    assert row.after <= share * row.before or chain[0].arguments.get("rank", 1) == 1
    assert row.error == pytest.approx(((H - layer.weight).norm() / layer.weight.norm()).item())
    torch.testing.assert_close(converted.weight, H, **CLOSE)
    x = torch.randn(2, 3, shape[1], dtype=torch.float64)
    torch.testing.assert_close(converted(x), x @ H.T + layer.bias, **CLOSE)
    dense = phmctl.to_dense(converted)
    assert type(dense) is nn.Linear
    torch.testing.assert_close(dense(x), converted(x), **CLOSE)


def test_the_product_is_the_truncated_decomposition() -> None:
    torch.manual_seed(0)
    weight = nn.Linear(64, 48, dtype=torch.float64).weight
    singular = torch.linalg.svdvals(weight)
    for rank, rows in ((4, None), (5, 48), (48, None)):
        kronecker = Kronecker(0, rank=rank, rows=rows)
        error = (weight - kronecker(*kronecker.right_inverse(weight))).norm().item()
        assert error == pytest.approx(singular[rank:].norm().item(), abs=1e-9)
    R, L = Kronecker(0, rank=4).right_inverse(torch.zeros(8, 6))
    assert R.any()
    assert not L.any()  # one of them must get a gradient
    with pytest.raises(UserError, match="rank = 4"):
        Kronecker(4, rank=4)


LAYERS: dict[str, nn.Module] = {
    "convolution": nn.Conv2d(16, 24, 3, groups=2),
    "transposed": nn.ConvTranspose1d(16, 24, 3),
    "lstm": nn.LSTM(16, 16),
    "attention": nn.MultiheadAttention(16, 2),
    "table": nn.Embedding(41, 16, padding_idx=3),
    "bag": nn.EmbeddingBag(41, 16),
}


def inputs_of(name: str) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    if name in ("table", "bag"):
        return (torch.randint(0, 41, (3, 5)),)
    shapes = {"convolution": (2, 16, 8, 8), "transposed": (2, 16, 8), "lstm": (4, 2, 16), "attention": (4, 2, 16)}
    return (torch.randn(shapes[name]).double(),) * (3 if name == "attention" else 1)


@pytest.mark.parametrize("name", LAYERS)
def test_every_layer_answers_learns_and_becomes_dense(name: str) -> None:
    layer = copy.deepcopy(LAYERS[name]).double()
    converted, report = phmctl.convert(layer, share=0.4, select="*")
    assert not report.rows[0].skipped
    assert report.rows[0].after <= 0.4 * report.rows[0].before
    outputs, dense = converted(*inputs_of(name)), phmctl.to_dense(converted)
    assert type(dense) is type(layer)
    if not isinstance(outputs, tuple):
        outputs = (outputs,)
    expected = dense(*inputs_of(name))
    torch.testing.assert_close(outputs[0], expected[0] if isinstance(expected, tuple) else expected, **CLOSE)
    outputs[0].square().sum().backward()
    assert all(parameter.grad is not None for parameter in converted.parameters())


@pytest.mark.parametrize("has_zeros", [True, False])
def test_a_table_of_low_rank_and_the_map_that_is_tied_to_it_stay_one(has_zeros: bool) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(41, 16, padding_idx=3), nn.Linear(16, 41)).double()
    net[1].weight = net[0].weight
    with torch.no_grad():
        net[0].weight[3] = 0.0 if has_zeros else 1.0
    converted, report = phmctl.convert(net, share=0.5)
    assert not any(row.skipped for row in report.rows)
    assert len(list(converted.parameters())) == 3  # R, L and the bias
    ids, dense = torch.tensor([[0, 3, 40], [3, 5, 6]]), phmctl.to_dense(converted)
    assert dense[0].weight is dense[1].weight
    torch.testing.assert_close(converted(ids), dense(ids), **CLOSE)
    assert bool(converted[0](ids)[0, 1].any()) != has_zeros
    alone = converted[0]
    alone(torch.tensor([3, 3])).sum().backward()  # as in torch, a padding row gets no gradient
    assert not any(factor.grad is not None and factor.grad.any() for factor in alone.parameters())


def test_maps_and_tables_of_low_rank_do_not_build_their_weight() -> None:
    net, _ = phmctl.convert(nn.Sequential(nn.Embedding(500, 64), nn.Linear(64, 320)), share=0.25)
    largest = []
    with Watch(lambda _, result: largest.append(result.numel())):
        net(torch.arange(4)).sum().backward()
    assert max(largest) < 64 * 320
    inner = net[1]
    with torch.autocast("cpu", torch.bfloat16):
        assert net[0](torch.arange(4)).dtype == torch.float32
        assert net(torch.arange(4)).dtype == torch.bfloat16
    state = {name: torch.zeros_like(tensor) for name, tensor in inner.named_parameters()}
    assert not torch.func.functional_call(inner, state, torch.ones(2, 64)).any()


class Net(nn.Module):
    """A tied table of 41 rows, a map, a convolution and an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(41, 32, padding_idx=0), nn.Linear(32, 41)
        self.out.weight = self.words.weight
        self.map, self.image, self.reader = nn.Linear(32, 32), nn.Conv1d(32, 32, 3), nn.LSTM(32, 32, batch_first=True)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        mixed = self.image(self.map(self.words(ids)).mT).mT
        return self.out(self.reader(mixed)[0])


@pytest.mark.parametrize("form", ["float32", "float16", "int8", "int4"])
def test_it_is_saved_rounded_and_loaded(form: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    ids = torch.randint(0, 41, (2, 7))
    model, _ = phmctl.convert(Net().eval(), share=0.4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.01 * torch.randn_like(parameter))
    phmctl.save(model, tmp_path, quantize=form)
    loaded = phmctl.load_into(Net(), tmp_path).eval()
    assert loaded.out.parametrizations["weight"] is loaded.words.parametrizations["weight"]
    distance = (loaded(ids) - model(ids)).norm() / model(ids).norm()
    assert distance <= {"float32": 0.0, "float16": 1e-3, "int8": 0.02, "int4": 0.3}[form]
    again, _ = phmctl.convert(Net(), share=0.4)
    torch.testing.assert_close(phmctl.load_into(again, tmp_path).eval()(ids), loaded(ids))
    if form == "float32":
        other, _ = phmctl.convert(Net(), share=0.2)
        with pytest.raises(UserError, match="not as in"):
            phmctl.load_into(other, tmp_path)


@pytest.mark.parametrize("size", [{"share": 0.25}, {"n": 4}])
def test_a_step_moves_the_weight_as_far_as_the_dense_weight(size: Any) -> None:
    """The rates and the decays fit the structure, and `phmctl.step` gives the same gradients."""
    torch.manual_seed(0)
    layer = nn.Linear(256, 256, bias=False)
    converted, _ = phmctl.convert(layer, **size)
    before, lr = converted.weight.detach().clone(), 1e-3
    groups = phmctl.parameter_groups(converted, lr, weight_decay=0.1)
    decays = {id(tensor): group["weight_decay"] for group in groups for tensor in group["params"]}
    chain = converted.parametrizations.weight
    kept = [name for name, tensor in zip(chain[0].names, chain.parameters(), strict=True) if decays[id(tensor)]]
    assert kept == (["S"] if "n" in size else ["L"])
    optimiser = torch.optim.Adam([{**group, "weight_decay": 0.0} for group in groups])
    x, y = torch.randn(512, 256), torch.randn(512, 256)
    (converted(x) - y).square().sum().backward()
    gradients = [tensor.grad.clone() for tensor in converted.parameters()]
    optimiser.step()
    moved = (converted.weight - before).square().mean().sqrt().item()
    assert 0.3 < moved / (lr * 64 / 256) < 4
    with torch.no_grad():
        for tensor, source in zip(converted.parameters(), chain[0].right_inverse(layer.weight), strict=True):
            tensor.copy_(source)
            tensor.grad = None
    with phmctl.step(converted):
        for half in (slice(0, 256), slice(256, 512)):
            (converted(x[half]) - y[half]).square().sum().backward()
    for tensor, gradient in zip(converted.parameters(), gradients, strict=True):
        torch.testing.assert_close(tensor.grad, gradient, rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"share": 0}, "share = 0"),
        ({"share": 1.5}, "share = 1.5"),
        ({"share": "a quarter"}, "a quarter"),
        ({"share": 0.25, "n": 4}, "n = 4"),
        ({"share": 0.25, "algebra": "quaternion"}, "algebra = 'quaternion'"),
        ({}, "share"),
        ({"n": 4, "inputs": [torch.ones(4, 16)]}, "share="),
        ({"share": 0.25, "select": iter(["*"])}, "select"),
        ({"share": 0.25, "model": nn.Linear(1, 8)}, "no fewer"),
        ({"share": 0.25}, "rank 2"),
        ({"share": 0.25, "inputs": []}, "empty"),
        ({"share": 0.25, "inputs": [torch.zeros(0, 16)]}, "empty"),
        ({"share": 0.25, "inputs": 3}, "int"),
        ({"share": 0.25, "inputs": [torch.full((4, 16), math.nan)]}, "NaN"),
        ({"share": 0.25, "inputs": [torch.zeros(4, 15)]}, "batch 1"),
        ({"share": 0.25, "select": "*", "model": nn.Linear(8, 8, device="meta")}, "meta"),
        ({"share": 0.25, "select": "*", "model": nn.Linear(8, 8, dtype=torch.complex64)}, "complex"),
    ],
)
def test_impossible_shares_are_refused(options: dict[str, Any], place: str) -> None:
    with pytest.raises(UserError, match=place):
        phmctl.convert(**({"model": nn.Linear(16, 16)} | options))


def test_a_rank_above_a_side_of_the_weight_is_refused() -> None:
    with pytest.raises(DimensionError, match="rank = 17"):
        register_parametrization(nn.Linear(16, 32), "weight", Kronecker(0, rank=17))


def test_without_select_a_product_of_little_rank_stays_dense() -> None:
    net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    small, report = phmctl.convert(net, share=0.25)
    assert [row.skipped is None for row in report.rows] == [True, False]
    assert torch.equal(small[2].weight, net[2].weight)
    _, report = phmctl.convert(net, share=0.25, select="*")
    assert [row.after for row in report.rows] == [8 * 128, 2 * 74]


def test_inputs_weigh_the_error_of_the_product() -> None:
    torch.manual_seed(0)
    mixing = torch.randn(48, 48, dtype=torch.float64) * torch.logspace(0, -2, 48, dtype=torch.float64)
    layer = nn.Linear(48, 64, dtype=torch.float64)
    batches = [torch.randn(20, 5, 48, dtype=torch.float64) @ mixing.T for _ in range(20)]

    def error(inputs: Any) -> float:
        converted, _ = phmctl.convert(layer, share=0.3, inputs=inputs)
        return sum((converted(x) - layer(x)).square().sum().item() for x in batches)

    assert error(batches) < 0.7 * error(None)


def test_the_product_is_the_nearest_on_the_inputs() -> None:
    """No other weight of the rank is nearer: the truncated decomposition of W X for inputs X (d, many)."""
    torch.manual_seed(0)
    layer, x = nn.Linear(12, 10, bias=False, dtype=torch.float64), torch.randn(500, 12, dtype=torch.float64).cumsum(1)
    converted, _ = phmctl.convert(layer, share=0.4, select="*", inputs=[x])
    rank = converted.parametrizations.weight.original0.shape[0]
    least = torch.linalg.svdvals(layer(x))[rank:].square().sum().item()
    assert (converted(x) - layer(x)).square().sum().item() == pytest.approx(least, rel=1e-2)


def test_inputs_may_be_single_rows_and_arguments_by_name() -> None:
    class Named(nn.Module):
        def __init__(self, layer: nn.Module) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(input=x)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    layer, x = nn.Linear(48, 64, dtype=torch.float64), torch.randn(100, 48, dtype=torch.float64).cumsum(1)
    expected = phmctl.convert(layer, share=0.3, inputs=[x])[0].weight
    torch.testing.assert_close(phmctl.convert(layer, share=0.3, inputs=x)[0].weight, expected)
    torch.testing.assert_close(phmctl.convert(Named(layer), share=0.3, inputs=[x])[0].layer.weight, expected)


def test_rows_of_a_table_that_are_read_often_are_nearer_and_the_mode_stays() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(60, 16, dtype=torch.float64), nn.Dropout(0.5))
    model.train()
    inputs = [(torch.arange(3).repeat(400),), torch.arange(3)]
    converted, _ = phmctl.convert(model, share=0.3, select="*", inputs=inputs)
    errors = (converted[0].weight - model[0].weight).norm(dim=1)
    assert errors[:3].mean() < 0.2 * errors[3:].mean()
    assert model.training
    assert model[1].training
    assert not model[0]._forward_pre_hooks


def test_a_dense_copy_can_be_written_as_safetensors() -> None:
    model = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 32), nn.ConvTranspose1d(24, 16, 3))
    small, _ = phmctl.convert(model, share=0.5, select="*")
    dense = phmctl.to_dense(small)
    assert all(parameter.is_contiguous() for parameter in dense.parameters())
    ids = torch.arange(24)
    torch.testing.assert_close(dense(ids), small(ids))
