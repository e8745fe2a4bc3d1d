import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from phmctl.algebra import rank_product as module
from phmctl.algebra.rank_product import Factors, block_sums, rank_linear, recompose
from tests.references import kronecker_sum_reference


def draw(n: int, rank: int, rows: int, columns: int, tokens: int, seed: int = 0) -> tuple[Tensor, Tensor, Factors]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator)

    x, S = normal(tokens, n * columns), normal(n, rows, columns)
    return x, S, Factors(normal(n, rank), normal(n, rank), normal(rank, n))


def apply(x: Tensor, S: Tensor, factors: Factors, bias: Tensor | None = None) -> Tensor:
    return rank_linear(x, block_sums(factors.W, S), factors.U, factors.V, bias)


@pytest.fixture(params=[False, True], ids=["tiles", "at once"], autouse=True)
def at_once(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both implementations run on this CPU; CUDA has the second."""
    monkeypatch.setattr(module, "AT_ONCE", {"cpu"} if request.param else set())


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    n=st.integers(1, 5),
    rank=st.integers(1, 9),
    rows=st.integers(1, 6),
    columns=st.integers(1, 6),
    tokens=st.integers(0, 11),
    tile=st.integers(1, 6),
)
def test_the_output_equals_the_kronecker_sums(
    n: int, rank: int, rows: int, columns: int, tokens: int, tile: int
) -> None:
    x, S, factors = draw(n, rank, rows, columns, tokens)
    bias = torch.randn(n * rows, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "TILE", tile)
        y = apply(x, S, factors, bias)
    torch.testing.assert_close(y, x @ kronecker_sum_reference(recompose(factors), S).t() + bias)


@pytest.mark.parametrize("differentiated", ["x", "S", "W", "U", "V", "b", "xSWUVb"])
def test_gradients(differentiated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TILE", 2)  # several tiles, the last one short
    x, S, factors = draw(3, 5, 2, 4, tokens=5)
    tensors = {"x": x, "S": S, "W": factors.W, "U": factors.U, "V": factors.V, "b": torch.arange(6.0).double()}
    for name, tensor in tensors.items():
        tensor.requires_grad_(name in differentiated)

    def function(x: Tensor, S: Tensor, W: Tensor, U: Tensor, V: Tensor, b: Tensor) -> Tensor:
        return apply(x, S, Factors(W, U, V), b)

    assert torch.autograd.gradcheck(function, tuple(tensors.values()))
    assert torch.autograd.gradgradcheck(function, tuple(tensors.values()))
    wide = torch.cat([x.detach(), x.detach()], 1).requires_grad_("x" in differentiated)
    half = dict(tensors, x=wide)
    assert torch.autograd.gradgradcheck(lambda x, *rest: function(x.chunk(2, 1)[1], *rest), tuple(half.values()))


def test_a_differentiable_gradient_stops_at_the_layer() -> None:
    """A map is applied twice, so its input depends on U, V and the bias."""
    x, S, factors = draw(2, 3, 2, 2, tokens=4)
    tensors = [S, *factors, torch.arange(4.0).double()]
    for tensor in tensors:
        tensor.requires_grad_()
    y = apply(apply(x, S, factors, tensors[-1]).tanh(), S, factors, tensors[-1]).square().sum()
    torch.testing.assert_close(
        torch.autograd.grad(y, tensors, retain_graph=True), torch.autograd.grad(y, tensors, create_graph=True)
    )


def test_a_noncontiguous_input() -> None:
    x, S, factors = draw(2, 3, 2, 2, tokens=4)
    torch.testing.assert_close(apply(x.t().contiguous().t(), S, factors), apply(x, S, factors))


def test_bfloat16_sums_its_gradients_in_float32() -> None:
    x, S, factors = draw(2, 3, 4, 4, tokens=4096)
    half = [tensor.bfloat16().requires_grad_() for tensor in (x, block_sums(factors.W, S), factors.U, factors.V)]
    exact = [tensor.detach().double().requires_grad_() for tensor in half]
    for inputs in (half, exact):
        rank_linear(*inputs).square().sum().backward()
    for tensor, reference in zip(half, exact, strict=True):
        assert tensor.grad is not None
        assert tensor.grad.dtype == torch.bfloat16
        assert (tensor.grad.double() - reference.grad).norm() / reference.grad.norm() < 0.02


def test_the_output_is_not_a_view_of_a_saved_tensor() -> None:
    x, S, factors = draw(4, 4, 8, 8, tokens=2 * module.TILE)
    y = apply(x.requires_grad_(), S, factors)
    y.relu_().sum().backward()
    assert x.grad.any()


def test_a_compiler_sees_one_graph_of_the_product_and_its_gradients() -> None:
    """As on CUDA, but the graph runs uncompiled on this CPU."""
    torch._dynamo.reset()
    x, S, (W, U, V) = draw(3, 5, 2, 4, tokens=7)
    inputs = [tensor.requires_grad_() for tensor in (x, block_sums(W, S), U, V, torch.arange(6.0).double())]
    expected = rank_linear(*inputs)
    actual = torch.compile(module._mixed_product, backend="aot_eager", fullgraph=True)(*inputs)
    torch.testing.assert_close(actual, expected)
    gradients = [torch.autograd.grad(y.square().sum(), inputs) for y in (actual, expected)]
    torch.testing.assert_close(*gradients)
