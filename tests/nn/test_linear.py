import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from phmctl import PHMEmbedding, PHMLinear
from phmctl.algebra.initialisation import learned_rule
from phmctl.algebra.kronecker import kronecker_sum
from phmctl.errors import DimensionError, UserError
from tests.references import kronecker_sum_reference

ALGEBRAS = [
    ("phm", 1), ("phm", 2), ("phm", 3), ("phm", 4), ("real", 1), ("complex", 2), ("quaternion", 4), ("octonion", 8),
    ("sedenion", 16),
]  # fmt: skip


# name -> arguments that a layer of n = 4 wants for it
EXECUTIONS = {"dense": {}, "rank": {"parametrization": "factors"}}


def reference(layer: PHMLinear, x: torch.Tensor) -> torch.Tensor:
    """What the layer must give, in float64, from the sum of ``torch.kron``."""
    H = layer.weight.double() if layer.n == 1 else kronecker_sum_reference(layer.A, layer.S)
    return x.double() @ H.T + (0 if layer.bias is None else layer.bias.double())


@given(
    algebra=st.sampled_from(ALGEBRAS),
    blocks=st.tuples(st.integers(1, 4), st.integers(1, 4)),
    leading=st.lists(st.integers(0, 5), max_size=3),
    bias=st.booleans(),
    training=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_any_leading_shape_against_the_definition(algebra, blocks, leading, bias, training) -> None:
    name, n = algebra
    layer = PHMLinear(n * blocks[0], n * blocks[1], n=n, bias=bias, algebra=name).train(training)
    x = torch.randn(*leading, n * blocks[0])
    with torch.no_grad():
        y = layer(x)
        expected = reference(layer, x)
    assert y.shape == (*leading, n * blocks[1])
    torch.testing.assert_close(y, expected.float(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("options", [{}, {"algebra": "quaternion"}, {"algebra": "quaternion", "execution": "rank"}])
def test_gradients(options: dict[str, str]) -> None:
    layer = PHMLinear(8, 12, n=4, **options, dtype=torch.float64)
    names, values = zip(*layer.named_parameters(), strict=True)

    def call(x: torch.Tensor, *parameters: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, dict(zip(names, parameters, strict=True)), (x,))

    x = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(call, (x, *values))


def test_shapes_and_names() -> None:
    layer = PHMLinear(8, 12, n=4)
    assert {name: tuple(p.shape) for name, p in layer.named_parameters()} == {
        "A": (4, 4, 4), "S": (4, 3, 2), "bias": (12,),
    }  # fmt: skip
    assert layer.weight.shape == (12, 8)
    assert repr(layer) == "PHMLinear(in_features=8, out_features=12, n=4, bias=True, algebra='phm')"


def test_a_fixed_rule_is_in_no_checkpoint() -> None:
    layer = PHMLinear(8, 12, n=4, algebra="quaternion")
    assert set(layer.state_dict()) == {"S", "bias"}
    assert layer.A.shape == (4, 4, 4)


def test_n_1_is_a_linear_layer() -> None:
    torch.manual_seed(2)
    dense = nn.Linear(6, 5)
    torch.manual_seed(2)
    layer = PHMLinear(6, 5, n=1)
    assert set(layer.state_dict()) == {"weight", "bias"}
    assert not hasattr(layer, "A")
    torch.testing.assert_close(layer.state_dict(), dense.state_dict())
    layer.load_state_dict(dense.state_dict(), assign=True)
    x = torch.randn(2, 6)
    assert torch.equal(layer(x), dense(x))
    assert isinstance(layer.weight, nn.Parameter)


def test_n_1_can_be_tied() -> None:
    layer = PHMLinear(6, 5, n=1)
    shared = nn.Parameter(torch.randn(5, 6))
    layer.weight = shared
    assert layer.weight is shared


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((512, 100, 3), "in_features = 512 and out_features = 100; the nearest n that do are 2 and 4"),
        ((512, 96, 5), "in_features = 512 and out_features = 96; the nearest n that do are 4 and 8"),
    ],
)
def test_n_that_does_not_divide(arguments: tuple[int, int, int], message: str) -> None:
    with pytest.raises(DimensionError) as error:
        PHMLinear(*arguments[:2], n=arguments[2])
    assert str(error.value) == f"n = {arguments[2]} does not divide {message}"


def test_wrong_algebra_and_scheme() -> None:
    with pytest.raises(UserError, match="did you mean 'octonion'"):
        PHMLinear(8, 8, n=8, algebra="octonoin")
    with pytest.raises(DimensionError, match="algebra 'octonion' has n = 8, not 4"):
        PHMLinear(8, 8, n=4, algebra="octonion")
    with pytest.raises(UserError, match="did you mean 'kaiming_normal'"):
        PHMLinear(8, 8, n=4, initialization="kaiming_norm")


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_input_of_the_wrong_width(execution: str) -> None:
    layer = PHMLinear(8, 8, n=4, execution=execution, **EXECUTIONS[execution])
    with pytest.raises(DimensionError, match="does not end in in_features = 8"):
        layer(torch.zeros(4, 4))


@torch.no_grad()
def check(layer: PHMLinear, x: torch.Tensor) -> None:
    torch.testing.assert_close(layer(x), reference(layer, x).to(layer.S.dtype), atol=1e-5, rtol=1e-4)


# --- shared rules, devices, precision, initialisation, conversion


def test_shared_rule_counts_once_and_is_left_as_it_is() -> None:
    rule = learned_rule(4)
    before = rule.detach().clone()
    pair = nn.ModuleList([PHMLinear(8, 8, n=4, bias=False, rule=rule), PHMLinear(8, 16, n=4, bias=False, rule=rule)])
    assert sum(parameter.numel() for parameter in pair.parameters()) == 64 + 8 * 8 // 4 + 8 * 16 // 4
    pair[0].reset_parameters()
    assert torch.equal(rule, before)
    pair[0](torch.randn(2, 8)).sum().backward()
    first = rule.grad.clone()
    pair[1](torch.randn(2, 8)).sum().backward()
    assert not torch.equal(rule.grad, first)


def test_rule_that_cannot_be_shared() -> None:
    with pytest.raises(DimensionError):
        PHMLinear(8, 8, n=4, rule=learned_rule(2))
    with pytest.raises(UserError):
        PHMLinear(8, 8, n=4, algebra="quaternion", rule=learned_rule(4))
    with pytest.raises(UserError):
        PHMLinear(8, 8, n=1, rule=learned_rule(1))
    with pytest.raises(UserError):
        PHMLinear(8, 8, n=4, rule=torch.randn(4, 4, 4))
    with pytest.raises(UserError):
        PHMLinear(8, 8, n=4, rank=2.5)
    with pytest.raises(DimensionError):
        PHMLinear(8, 8, n=4.0)


@pytest.mark.parametrize(("name", "n"), ALGEBRAS)
def test_from_meta_to_a_device(name: str, n: int) -> None:
    source = PHMLinear(48, 96, n=n, algebra=name)
    layer = PHMLinear(48, 96, n=n, algebra=name, device="meta")
    assert sum(p.numel() for p in layer.parameters()) == sum(p.numel() for p in source.parameters())
    layer.to_empty(device="cpu")
    layer.load_state_dict(source.state_dict())
    x = torch.randn(3, 48)
    torch.testing.assert_close(layer(x), source(x))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("layer_type", [PHMLinear, PHMEmbedding])
def test_a_fixed_rule_goes_where_the_assigned_parameters_are(layer_type: type[nn.Module], dtype: torch.dtype) -> None:
    source = layer_type(16, 8, n=4, algebra="quaternion").to(dtype)
    layer = layer_type(16, 8, n=4, algebra="quaternion", device="meta")
    layer.load_state_dict(source.state_dict(), assign=True)
    assert torch.equal(layer.A, source.A)
    assert torch.equal(layer.to("cpu").weight, source.weight)
    for mine, theirs in zip(layer.factors, source.factors, strict=True):
        assert torch.equal(mine, theirs)


@pytest.mark.parametrize("execution", EXECUTIONS)
@pytest.mark.parametrize("options", [{"algebra": "quaternion"}, {"parametrization": "factors"}])
def test_meta_forward_gives_the_shape(options: dict[str, str], execution: str) -> None:
    layer = PHMLinear(16, 32, n=4, execution=execution, device="meta", **options)
    x = torch.empty(2, 5, 16, device="meta", requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == (2, 5, 32)
    assert x.grad is not None
    assert x.grad.shape == x.shape


def test_fixed_rule_follows_dtype() -> None:
    layer = PHMLinear(8, 8, n=4, algebra="quaternion").double()
    assert layer.A.dtype == torch.float64
    check(layer, torch.randn(2, 8, dtype=torch.float64))


@pytest.mark.parametrize("execution", EXECUTIONS)
def test_autocast(execution: str) -> None:
    torch.manual_seed(0)
    layer = PHMLinear(64, 64, n=4, execution=execution, **EXECUTIONS[execution])
    x = torch.randn(8, 64)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
        y.float().square().mean().backward()
        with torch.no_grad():
            kept = layer.eval()(x)
    assert y.dtype == kept.dtype == torch.bfloat16
    expected = reference(layer, x).float()
    torch.testing.assert_close(y.float(), expected, atol=0.04, rtol=0.04)
    torch.testing.assert_close(kept.float(), expected, atol=0.02, rtol=0.02)
    assert all(p.grad.dtype == torch.float32 and p.grad.isfinite().all() for p in layer.parameters())
    check(layer, x)  # H is of full precision again outside autocast


def test_per_sample_gradients_through_torch_func() -> None:
    layer = PHMLinear(8, 8, n=4)
    parameters = {name: p.detach() for name, p in layer.named_parameters()}
    x = torch.randn(3, 8)

    def loss(parameters: dict[str, torch.Tensor], row: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, parameters, (row,)).square().sum()

    for mode in (True, False):
        layer.train(mode)
        each = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
        layer.zero_grad()
        layer(x).square().sum().backward()
        torch.testing.assert_close(each["S"].sum(dim=0), layer.S.grad, atol=1e-5, rtol=1e-4)


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


def test_a_replica_of_a_layer_without_a_rule_has_its_weight() -> None:
    """As torch's DataParallel makes it: tensors in place of parameters."""
    for n in (1, 4):
        layer = PHMLinear(8, 8, n=n)
        replica = layer._replicate_for_data_parallel()
        for name, parameter in layer.named_parameters():
            setattr(replica, name, parameter.detach().clone())
        x = torch.randn(2, 8)
        torch.testing.assert_close(replica(x), layer(x))


def test_the_layer_stands_on_few_modules() -> None:
    code = "import sys; from phmctl import PHMLinear; print(*sys.modules)"
    words = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "phmctl.files" not in words
    assert len([name for name in words if name.startswith("phmctl")]) <= 14


def test_default_bias_is_that_of_nn_linear() -> None:
    bound = 1 / math.sqrt(64)
    bias = PHMLinear(64, 4096, n=4).bias
    assert bias.abs().max() <= bound
    assert bias.var().item() == pytest.approx(bound**2 / 3, rel=0.1)


@pytest.mark.parametrize("n", [1, 2, 4])
def test_from_dense_is_exact_for_a_sum_of_n_products(n: int) -> None:
    source = PHMLinear(12, 20, n=n)
    dense = nn.Linear(12, 20)
    with torch.no_grad():
        dense.weight.copy_(source.weight)
        dense.bias.copy_(source.bias)
    layer, error = PHMLinear.from_dense(dense, n)
    assert error < 1e-6
    x = torch.randn(7, 12)
    torch.testing.assert_close(layer(x), dense(x))


def test_from_dense_of_any_weight_says_what_it_loses() -> None:
    dense = nn.Linear(12, 20, bias=False, dtype=torch.float64).eval()
    layer, error = PHMLinear.from_dense(dense, 2)
    left = (dense.weight - kronecker_sum(layer.A, layer.S)).norm() / dense.weight.norm()
    assert error == pytest.approx(left.item())
    assert (layer.bias, layer.training, layer.S.dtype) == (None, False, torch.float64)
    with pytest.raises(DimensionError, match="n = 5 does not divide in_features = 12"):
        PHMLinear.from_dense(dense, 5)


def test_a_product_of_quaternions_is_learned() -> None:
    """The paper's second artificial task (Figure 2b): n = 4 learns the Hamilton product."""
    torch.manual_seed(0)
    target = PHMLinear(4, 4, n=4, bias=False, algebra="quaternion")
    layer = PHMLinear(4, 4, n=4, bias=False)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)
    x = torch.randn(64, 4)
    with torch.no_grad():
        y = target(x)
    for _ in range(400):
        optimizer.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        optimizer.step()
    assert loss.item() < 1e-6
