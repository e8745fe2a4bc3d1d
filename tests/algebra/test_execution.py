import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phmctl.algebra.bilinear import Factors, recompose
from phmctl.algebra.execution import apply_dense, apply_factored, apply_rank, choose
from phmctl.algebra.kronecker import materialise_reference
from phmctl.algebra.products import LIBRARIES

EXECUTIONS = {"dense": apply_dense, "factored": apply_factored}
names = pytest.mark.parametrize("name", list(EXECUTIONS))
shapes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 7), st.booleans())


def draw(n: int, rows: int, columns: int, tokens: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(n + rows + columns + tokens)
    sizes = [(tokens, n * columns), (n, n, n), (n, rows, columns), (n * rows,)]
    return tuple(torch.randn(*size, dtype=torch.float64, generator=generator) for size in sizes)


@names
@given(shape=shapes)
@settings(max_examples=25, deadline=None)
def test_every_execution_is_the_definition(name: str, shape: tuple[int, int, int, int, bool]) -> None:
    *sizes, with_bias = shape
    x, A, S, bias = draw(*sizes)
    expected = x @ materialise_reference(A, S).T + (bias if with_bias else 0)
    torch.testing.assert_close(EXECUTIONS[name](x, A, S, bias if with_bias else None), expected)


@given(shape=shapes)
@settings(max_examples=25, deadline=None)
def test_rank_is_the_definition(shape: tuple[int, int, int, int, bool]) -> None:
    *sizes, with_bias = shape
    x, A, S, bias = draw(*sizes)
    factors = Factors(A[0], A[:, 0], A[:, :, 0])  # any three matrices of fitting shape
    expected = x @ materialise_reference(recompose(factors), S).T + (bias if with_bias else 0)
    torch.testing.assert_close(apply_rank(x, factors, S, bias if with_bias else None), expected)


@names
@pytest.mark.parametrize("shape", [(3, 2, 4, 5), (3, 4, 2, 5)])
def test_gradients(name: str, shape: tuple[int, int, int, int]) -> None:
    inputs = [tensor.requires_grad_() for tensor in draw(*shape)]
    assert torch.autograd.gradcheck(EXECUTIONS[name], inputs)


@names
@pytest.mark.parametrize("shape", [(2, 3, 2, 4), (2, 2, 3, 6)])
def test_gradients_of_an_input_that_is_not_contiguous(name: str, shape: tuple[int, int, int, int]) -> None:
    x, A, S, bias = draw(*shape)
    x = x.T.contiguous().T.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: EXECUTIONS[name](x, A, S, bias), (x,))


@pytest.mark.parametrize(
    ("tokens", "d", "k", "n", "rank", "expected"),
    [
        (4096, 512, 2048, 8, None, "dense"),  # no factors
        (4096, 2048, 2048, 8, 24, "rank"),
        (4096, 1024, 4096, 4, 7, "rank"),
        (4096, 16, 16, 4, 16, "dense"),  # all mixing
        (0, 512, 512, 4, 7, "dense"),
    ],
)
@pytest.mark.parametrize("trains", [True, False])
@pytest.mark.parametrize("library", LIBRARIES)
def test_choice(
    tokens: int,
    d: int,
    k: int,
    n: int,
    rank: int | None,
    expected: str,
    trains: bool,
    library: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("phmctl.algebra.execution.library", lambda: library)
    assert choose(tokens, d, k, n, rank, trains=trains) == expected


def test_few_tokens_go_where_fewer_weights_are_read() -> None:
    assert choose(1, 2048, 2048, 8, None, trains=True) == "factored"
    assert choose(1, 2048, 2048, 8, 24, trains=False) in ("factored", "rank")


def test_a_gpu_was_not_measured() -> None:
    assert choose(4096, 512, 2048, 8, 24, trains=True, device="cuda") == "dense"


def test_a_lower_precision_was_not_measured() -> None:
    assert choose(4096, 512, 2048, 8, 24, trains=True, dtype=torch.bfloat16) == "dense"
