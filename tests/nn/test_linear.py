"""The PHM layer against the sum of ``torch.kron``; the builder that makes a model's layers."""

import math
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.nn.modules.module import register_module_parameter_registration_hook
from torch.nn.utils import prune

from phmctl import PHMLSTM, Kronecker, PHMConv2d, PHMEmbedding, PHMLinear, convert
from phmctl.errors import DimensionError, UserError
from phmctl.nn import structures
from phmctl.nn.layers import LinearBuilder
from tests.references import kronecker_sum_reference

ALGEBRAS = [
    ("phm", 1), ("phm", 2), ("phm", 3), ("phm", 4), ("real", 1), ("complex", 2), ("quaternion", 4), ("octonion", 8),
    ("sedenion", 16),
]  # fmt: skip
EXECUTIONS: dict[str, dict[str, Any]] = {"dense": {}, "rank": {"rank": 5}}  # with their options


def reference(layer: PHMLinear, x: Tensor) -> Tensor:
    """Return the output of the layer in float64, from the sum of ``torch.kron``."""
    H = layer.weight.double() if layer.n == 1 else kronecker_sum_reference(layer.A, layer.S)
    return x.double() @ H.T + (0 if layer.bias is None else layer.bias.double())


@given(
    algebra=st.sampled_from(ALGEBRAS),
    execution=st.sampled_from([*EXECUTIONS]),
    blocks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    leading=st.lists(st.integers(0, 5), max_size=3),
    bias=st.booleans(),
    training=st.booleans(),
)
def test_any_leading_shape_against_the_definition(algebra, execution, blocks, leading, bias, training) -> None:
    name, n = algebra
    options = {"execution": execution, **EXECUTIONS[execution]} if name == "phm" and n > 1 else {}
    layer = PHMLinear(n * blocks[0], n * blocks[1], n=n, bias=bias, algebra=name, **options).train(training)
    x = torch.randn(*leading, n * blocks[0])
    with torch.no_grad():
        y = layer(x)
        expected = reference(layer, x)
    assert y.shape == (*leading, n * blocks[1])
    torch.testing.assert_close(y, expected.float(), atol=1e-5, rtol=1e-4)


def test_shapes_and_names() -> None:
    layer = PHMLinear(8, 12, n=4)
    shapes = {name: tuple(p.shape) for name, p in layer.named_parameters()}
    assert shapes == {"A": (4, 4, 4), "S": (4, 3, 2), "bias": (12,)}
    assert layer.weight.shape == (12, 8)
    assert repr(layer) == "PHMLinear(in_features=8, out_features=12, n=4, bias=True, algebra='phm')"


def test_a_fixed_rule_is_in_no_checkpoint_and_follows_the_dtype() -> None:
    layer, x = PHMLinear(8, 12, n=4, algebra="quaternion"), torch.randn(2, 8, dtype=torch.float64)
    assert set(layer.state_dict()) == {"S", "bias"}
    assert layer.double().A.dtype == torch.float64
    torch.testing.assert_close(layer(x), reference(layer, x))


def test_a_model_that_moves_in_inference_mode_learns_later() -> None:
    layers = [PHMLinear(8, 8, n=4, algebra="quaternion"), convert(nn.Linear(8, 8), algebra="quaternion")[0]]
    with torch.inference_mode():
        nn.ModuleList(layers).to("cpu")
    for layer in layers:
        layer(torch.randn(2, 8)).sum().backward()
        assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.parametrize(("name", "value"), [("weight", torch.zeros(8)), ("A", torch.zeros(4)), ("execution", "Rank")])
def test_computed_tensors_and_unknown_executions_are_not_set(name: str, value: Any) -> None:
    with pytest.raises(UserError, match=name):
        setattr(PHMLinear(8, 8, n=4, rank=4), name, value)


def test_a_cached_rule_is_a_plain_tensor_after_modes_and_transformations() -> None:
    layer, x = PHMLinear(16, 16, n=16, algebra="sedenion"), torch.randn(2, 16)
    structures._cached.cache_clear()
    with FakeTensorMode(allow_non_fake_inputs=True):
        layer(x)
    torch.func.grad(lambda x: layer(x).sum())(x)
    with torch.inference_mode():
        layer(x)
    layer(x).sum().backward()
    assert type(structures._cached("sedenion", torch.device("cpu"), torch.float32)) is Tensor
    torch.testing.assert_close(layer(x), reference(layer, x).float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{"algebra": "quaternion"}, {"rank": 4}])
def test_a_rule_that_is_no_parameter_cannot_be_written(options: dict[str, Any]) -> None:
    layer, other, x = PHMLinear(8, 8, n=4, **options), PHMLinear(8, 8, n=4, algebra="quaternion"), torch.randn(2, 8)
    before = other(x)
    for write in (Tensor.zero_, Tensor.requires_grad_, lambda A: A.detach().zero_()):
        with suppress(UserError, RuntimeError):
            write(layer.A)
    with torch.no_grad(), pytest.raises(UserError):
        layer.A.mul_(2)
    assert torch.equal(other(x), before)  # all layers share the constant
    assert not PHMLinear(8, 8, n=4, algebra="quaternion").A.requires_grad


@pytest.mark.parametrize(("n", "names"), [(1, ["weight", "bias"]), (4, ["A", "S", "bias"])])
def test_torch_sees_the_registration_of_each_parameter(n: int, names: list[str]) -> None:
    """As accelerate's ``init_empty_weights`` does."""
    seen = []
    hook = register_module_parameter_registration_hook(lambda module, name, parameter: seen.append(name))
    with hook:
        layer = PHMLinear(8, 8, n=n)
    assert seen == names == list(layer.state_dict())
    with pytest.raises(TypeError):
        layer.register_parameter(names[0], torch.zeros(4))  # type: ignore[arg-type]


@pytest.mark.parametrize(("n", "name"), [(1, "weight"), (4, "A"), (4, "S")])
def test_pruning_and_its_removal(n: int, name: str) -> None:
    layer, x = PHMLinear(8, 8, n=n), torch.randn(2, 8)
    prune.random_unstructured(layer, name, 0.5)
    pruned = layer(x)
    prune.remove(layer, name)
    assert name in dict(layer.named_parameters())
    torch.testing.assert_close(layer(x), pruned)


def test_n_1_is_a_linear_layer_and_can_be_tied() -> None:
    torch.manual_seed(2)
    dense = nn.Linear(6, 5)
    torch.manual_seed(2)
    layer = PHMLinear(6, 5, n=1)
    assert not hasattr(layer, "A")
    torch.testing.assert_close(layer.state_dict(), dense.state_dict())
    layer.load_state_dict(dense.state_dict(), assign=True)
    x = torch.randn(2, 6)
    assert torch.equal(layer(x), dense(x))
    assert isinstance(layer.weight, nn.Parameter)
    layer.weight = dense.weight
    assert layer.weight is dense.weight


@pytest.mark.parametrize(
    ("options", "place"),
    [
        ({"in_features": 512, "out_features": 100, "n": 3}, "in_features = 512 and out_features = 100"),
        ({"n": 8, "algebra": "octonoin"}, "'octonion'"),
        ({"n": 4, "initialization": "xavier_unifrm"}, "'xavier_uniform'"),
        ({"n": 4.0}, "n = 4.0"),
        ({"n": 4, "execution": "ranks"}, "'rank'"),
        ({"n": 4, "execution": "rank"}, "execution 'rank'"),
        ({"n": 4, "execution": "rank", "algebra": "quaternion"}, "execution 'rank'"),
        ({"n": 4, "rank": 0}, "rank = 0"),
        ({"n": 4, "rank": 1.5}, "rank = 1.5"),
        ({"n": 4, "rank": 8, "algebra": "quaternion"}, "rank = 8"),
        ({"n": 1, "rank": 1}, "rank = 1"),
    ],
)
def test_impossible_layers_are_refused(options: dict[str, Any], place: str) -> None:
    with pytest.raises(UserError, match=place):
        PHMLinear(**({"in_features": 8, "out_features": 8} | options))


@pytest.mark.parametrize("n", [True, 2.0, "4", None])
def test_n_is_an_integer_in_every_layer(n: Any) -> None:
    for layer in (PHMLinear, PHMEmbedding, PHMLSTM, lambda *sizes, n: PHMConv2d(*sizes, 3, n=n)):
        with pytest.raises(DimensionError, match=f"n = {n!r} must"):
            layer(8, 8, n=n)
    with pytest.raises(DimensionError, match=f"n = {n!r} must"):
        Kronecker(n)


def test_n_may_be_an_integer_of_numpy() -> None:
    n = numpy.int64(4)
    layers = [PHMLinear(8, 8, n=n), PHMEmbedding(8, 8, n=n), PHMLSTM(8, 8, n=n), PHMConv2d(8, 8, 3, n=n)]
    assert all(type(layer.n) is int for layer in layers if hasattr(layer, "n"))
    sizes = convert(nn.Embedding(9, 8, padding_idx=n), n)[0].parametrizations.weight[0].arguments
    assert [type(sizes[name]) for name in ("n", "zero_row", "rows")] == [int] * 3
    assert type(Kronecker(0, rank=n).arguments["rank"]) is int


def test_impossible_layouts_are_refused() -> None:
    for arguments in ({"groups": 0}, {"parts": 0}, {"groups": 1.5}):
        with pytest.raises(DimensionError):
            Kronecker(4, **arguments)
    with pytest.raises(DimensionError):
        PHMLinear(8, 8, n=4, splits=0)
    with pytest.raises(DimensionError):
        PHMEmbedding(8, 8, n=4, padding_idx=1.5)


# --- devices, precision, initialisation


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_autocast(execution: str) -> None:
    torch.manual_seed(0)
    layer = PHMLinear(64, 64, n=4, execution=execution, **EXECUTIONS[execution])
    x = torch.randn(8, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        y.float().square().mean().backward()
        with torch.no_grad():
            evaluated = layer.eval()(x)
    assert y.dtype == evaluated.dtype == torch.bfloat16
    expected = reference(layer, x).float()
    torch.testing.assert_close(y.float(), expected, atol=0.04, rtol=0.04)
    torch.testing.assert_close(evaluated.float(), expected, atol=0.02, rtol=0.02)
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())
    torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-4)  # of full precision again outside autocast


@pytest.mark.parametrize(("name", "n"), ALGEBRAS)
def test_output_has_the_variance_of_nn_linear(name: str, n: int) -> None:
    torch.manual_seed(4)
    layer = PHMLinear(192, 384, n=n, bias=False, algebra=name)
    y = layer(torch.randn(4096, 192))
    assert y.var().item() == pytest.approx(1 / 3, rel=0.1)


def test_splits_give_each_stacked_map_its_own_fan_out() -> None:
    torch.manual_seed(4)
    fused = PHMLinear(96, 288, n=4, initialization="xavier_uniform", splits=3)
    assert fused.weight.var().item() == pytest.approx(2 / (96 + 96), rel=0.1)
    assert fused.bias.abs().max() == 0


def test_default_bias_is_that_of_nn_linear() -> None:
    bound = 1 / math.sqrt(64)
    bias = PHMLinear(64, 4096, n=4).bias
    assert bias.abs().max() <= bound
    assert bias.var().item() == pytest.approx(bound**2 / 3, rel=0.1)


def test_the_layers_load_torch_and_our_layers_alone() -> None:
    names = [f"phmctl.nn.{path.stem}" for path in Path(structures.__file__).parent.glob("[a-z]*.py")]
    code = f"import sys, importlib; [importlib.import_module(name) for name in {names}]; print(*sys.modules)"
    modules = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    ours = {".".join(name.split(".")[:2]) for name in modules if name.startswith("phmctl.")}
    assert ours == {"phmctl.nn", "phmctl.algebra", "phmctl.errors", "phmctl.version"}
    assert not {"pydantic", "rich", "yaml", "safetensors", "datasets"} & {name.split(".")[0] for name in modules}


# --- the builder


@pytest.mark.parametrize(("algebra", "n"), [("real", 1), ("phm", 1), ("quaternion", 4)])
def test_a_map_without_a_learned_rule_has_no_rule_parameters(algebra: str, n: int) -> None:
    builder = LinearBuilder(algebra, n, rules="model", rank=4)
    assert {name for name, _ in builder.linear(8, 8).named_parameters()} == {"weight" if n == 1 else "S", "bias"}
    assert [name for name, _ in builder.linear(8, 8, bias=False).named_parameters()] == ["weight" if n == 1 else "S"]


@pytest.mark.parametrize("options", [{}, {"rank": 6}])
@pytest.mark.parametrize(("sharing", "distinct"), [("separate", 4), ("sublayer", 2), ("model", 1)])
def test_maps_share_rules(sharing: Any, distinct: int, options: dict[str, Any]) -> None:
    builder = LinearBuilder("phm", 4, rules=sharing, **options)
    (a, b), (c, d) = [[inner.linear(8, 8) for _ in range(2)] for inner in (builder.sublayer(), builder.sublayer())]
    for name in "WUV" if options else "A":
        rules = [getattr(layer, name) for layer in (a, b, c, d)]
        assert len({id(rule) for rule in rules}) == distinct
        assert (rules[0] is rules[1]) == (rules[2] is rules[3]) == (sharing != "separate")
    if options:
        assert (tuple(a.W.shape), tuple(a.V.shape)) == ((4, 6), (6, 4))
