import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from phmctl.algebra.execution import EXECUTIONS, choose_execution
from phmctl.algebra.kronecker import materialise_reference

names = pytest.mark.parametrize("name", list(EXECUTIONS))
shapes = st.tuples(st.integers(1, 5), st.integers(1, 4), st.integers(1, 4), st.integers(1, 7), st.booleans())


def draw(n: int, rows: int, columns: int, tokens: int) -> tuple[torch.Tensor, ...]:
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


@names
def test_gradients(name: str) -> None:
    inputs = [tensor.requires_grad_() for tensor in draw(3, 2, 4, 5)]
    assert torch.autograd.gradcheck(EXECUTIONS[name], inputs)


@names
def test_gradients_of_an_input_that_is_not_contiguous(name: str) -> None:
    x, A, S, bias = draw(2, 3, 2, 4)
    x = x.T.contiguous().T.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: EXECUTIONS[name](x, A, S, bias), (x,))


@pytest.mark.parametrize(
    ("tokens", "n", "rows", "columns", "expected"),
    [
        (16, 4, 128, 128, "components"),
        (192, 4, 128, 128, "components"),
        (193, 4, 128, 128, "weight"),
        (16, 8, 256, 64, "rule"),
        (16, 8, 64, 256, "components"),
        (4096, 8, 256, 64, "weight"),
        (0, 4, 128, 128, "weight"),
    ],
)
def test_few_tokens_never_build_h(tokens: int, n: int, rows: int, columns: int, expected: str) -> None:
    assert choose_execution(tokens, torch.empty(n, rows, columns, device="meta")) == expected
