"""Compilers, exporters and torch.func take the layers as they take torch's own."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import phmctl
from phmctl import PHMLSTM, PHMLinear
from phmctl.models.transformer import Transformer
from phmctl.recipe.models import TransformerSection

CLOSE = {"rtol": 1e-4, "atol": 1e-5}
EXECUTIONS: list[dict[str, Any]] = [
    {"execution": "dense"},
    {"execution": "rank", "rank": 5},
    {"algebra": "quaternion"},
]
DYNAMIC = torch.export.Dim.DYNAMIC


def gradients(model: nn.Module, x: Tensor, y: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(y.square().sum(), [x, *model.parameters()]))


@pytest.fixture(autouse=True)
def fresh() -> None:
    torch.manual_seed(1)
    torch._dynamo.reset()


@pytest.mark.parametrize("options", EXECUTIONS)
def test_one_graph_for_a_layer_in_training_and_evaluation(options: dict[str, Any]) -> None:
    layer = PHMLinear(12, 8, n=4, **options)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager", dynamic=True)
    for tokens in (3, 5):
        x = torch.randn(tokens, 12, requires_grad=True)
        torch.testing.assert_close(compiled(x), layer(x), **CLOSE)
        torch.testing.assert_close(gradients(layer, x, compiled(x)), gradients(layer, x, layer(x)), **CLOSE)
    layer.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), layer(x), **CLOSE)
        layer.S.mul_(2)
        torch.testing.assert_close(compiled(x) - layer.bias, x @ phmctl.to_dense(layer).weight.T, **CLOSE)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("options", EXECUTIONS)
def test_export_and_trace_hold_for_any_batch(options: dict[str, Any]) -> None:
    layer = PHMLinear(12, 8, n=4, **options).eval()
    few, x = torch.randn(3, 12), torch.randn(7, 12)
    exported = torch.export.export(layer, (few,), dynamic_shapes=({0: DYNAMIC},)).module()
    for graph in (exported, torch.jit.trace(layer, few)):
        torch.testing.assert_close(graph(x), layer(x), **CLOSE)


@pytest.mark.parametrize("lengths", [None, torch.tensor([2, 1, 2])])
def test_an_lstm(lengths: Tensor | None) -> None:
    model = PHMLSTM(8, 4, n=2).double()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=True)
    x = torch.randn(3, 2, 8, dtype=torch.float64, requires_grad=True)
    actual, expected = compiled(x, lengths), model(x, lengths)
    torch.testing.assert_close(actual, expected, **CLOSE)
    torch.testing.assert_close(gradients(model, x, actual[0]), gradients(model, x, expected[0]), **CLOSE)


def transformer(**options: Any) -> nn.Module:
    sizes = {"width": 16, "feed_forward": 32, "heads": 2, "encoder_layers": 1, "decoder_layers": 1}
    return Transformer(TransformerSection(algebra="phm", n=4, dropout=0.0, **sizes, **options), 24, 24)


@pytest.mark.parametrize(
    ("embeddings", "mode", "dynamic"), [("phm", True, None), pytest.param("dense", False, True, marks=pytest.mark.slow)]
)
def test_a_transformer_and_its_loss(embeddings: str, mode: bool, dynamic: bool | None) -> None:
    model = transformer(embeddings=embeddings).train(mode)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    source, target = torch.tensor([[4, 5, 3, 0], [4, 4, 6, 3]]), torch.tensor([[2, 7, 9], [2, 5, 0]])
    actual, expected = compiled(source, target, target, 0.1), model(source, target, target, 0.1)
    torch.testing.assert_close(actual, expected, **CLOSE)
    ours, theirs = (torch.autograd.grad(loss[0], list(model.parameters())) for loss in (actual, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-4)


def token_ids(batch: int) -> tuple[Tensor, ...]:
    return torch.randint(4, 24, (batch, 5)), torch.randint(4, 24, (batch, 6))


def vectors(batch: int) -> tuple[Tensor, ...]:
    return (torch.randn(batch, 4, 8),)


@pytest.mark.parametrize(
    ("model", "inputs"),
    [
        (PHMLSTM(8, 4, n=2), vectors),
        (phmctl.convert(nn.LSTM(8, 8, batch_first=True), 4)[0], vectors),
        (transformer(), token_ids),
    ],
    ids=["PHMLSTM", "converted LSTM", "Transformer"],
)
def test_models_are_exported_for_any_batch(model: nn.Module, inputs: Callable[[int], tuple[Tensor, ...]]) -> None:
    model.eval()
    few, many = inputs(2), inputs(7)
    exported = torch.export.export(model, few, dynamic_shapes=tuple({0: DYNAMIC} for _ in few))
    torch.testing.assert_close(exported.module()(*many), model(*many), **CLOSE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter's own
@pytest.mark.parametrize("options", EXECUTIONS)
def test_onnx_with_a_dynamic_batch(options: dict[str, Any], tmp_path: Any) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    layer = PHMLinear(12, 8, n=4, **options).eval()
    path = str(tmp_path / "layer.onnx")
    torch.onnx.export(layer, (torch.randn(3, 12),), path, dynamo=True, dynamic_shapes=({0: DYNAMIC},))
    session = onnxruntime.InferenceSession(path)
    x = torch.randn(7, 12)
    (actual,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    torch.testing.assert_close(torch.from_numpy(actual), layer(x).detach(), **CLOSE)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of the exporter's own
def test_onnx_keeps_the_factors_without_the_exporters_optimisation(tmp_path: Any) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    model, _ = phmctl.convert(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64)), 4)
    count = sum(parameter.numel() for parameter in model.parameters())
    path = str(tmp_path / "model.onnx")
    torch.onnx.export(model.eval(), (torch.randn(3, 64),), path, dynamo=True, optimize=False, external_data=False)
    assert count == sum(math.prod(initializer.dims) for initializer in onnx.load(path).graph.initializer)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # of inductor's own
@pytest.mark.parametrize("options", EXECUTIONS[:2])
def test_inductor(options: dict[str, Any]) -> None:
    layer = PHMLinear(12, 8, n=4, **options)
    compiled = torch.compile(layer, fullgraph=True)
    x = torch.randn(5, 12, requires_grad=True)
    torch.testing.assert_close(gradients(layer, x, compiled(x)), gradients(layer, x, layer(x)), **CLOSE)


# --- torch.func and double backward


DEFAULTS: list[dict[str, Any]] = [{"algebra": "phm"}, {"algebra": "quaternion"}, {"rank": 5}]


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # torch's own, of a forward derivative
@pytest.mark.parametrize("options", DEFAULTS)
@pytest.mark.parametrize("tokens", [3, 512])
def test_transforms_of_every_default(options: dict[str, Any], tokens: int) -> None:
    layer = PHMLinear(64, 64, n=4, **options)
    parameters = {name: part.detach() for name, part in layer.named_parameters()}
    x = torch.randn(tokens, 64)

    def call(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(layer, parameters, (x,))

    H = phmctl.to_dense(layer).weight.detach()
    each_row = torch.func.vmap(torch.func.grad(lambda p, row: call(p, row).square().sum()), in_dims=(None, 0))
    layer(x).square().sum().backward()
    torch.testing.assert_close(each_row(parameters, x)["S"].sum(dim=0), layer.S.grad, rtol=1e-3, atol=1e-3)
    _, tangent = torch.func.jvp(lambda x: call(parameters, x), (x,), (x,))
    torch.testing.assert_close(tangent, x @ H.T, rtol=1e-3, atol=1e-4)
    batched = torch.func.vmap(lambda x: call(parameters, x))(torch.stack([x, -x]))
    torch.testing.assert_close(batched[0] + batched[1], (2 * layer.bias).expand(tokens, -1).detach(), **CLOSE)


@pytest.mark.parametrize("options", [*DEFAULTS, *EXECUTIONS[1:2]])
def test_gradients_of_gradients(options: dict[str, Any]) -> None:
    layer = PHMLinear(8, 8, n=4, dtype=torch.float64, **options)
    names, values = zip(*layer.named_parameters(), strict=True)

    def call(x: Tensor, *parameters: Tensor) -> Tensor:
        with torch.nn.utils.stateless._reparametrize_module(layer, dict(zip(names, parameters, strict=True))):
            return layer(x)

    x = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(call, (x, *values))
    assert torch.autograd.gradgradcheck(call, (x, *values))


@pytest.mark.parametrize("gates", ["separate", "fused"])
def test_gradients_of_an_lstm_s_gradients(gates: Any) -> None:
    model = PHMLSTM(4, 4, n=2, gates=gates).double()
    x, lengths = torch.randn(2, 3, 4, dtype=torch.float64, requires_grad=True), torch.tensor([1, 3])
    assert torch.autograd.gradgradcheck(lambda x: model(x, lengths)[0], x)
    tangent = torch.func.jvp(lambda x: model(x)[0], (x.detach(),), (x.detach(),))[1]
    assert tangent.any()
