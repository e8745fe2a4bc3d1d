from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from phmctl.algebra.bilinear import Factors, recompose
from phmctl.algebra.execution import (
    _random_map,
    apply_built,
    apply_factored,
    apply_rank,
    candidates,
    choose,
)
from phmctl.algebra.kronecker import materialise_reference
from phmctl.backends import choices
from phmctl.backends.choices import AUTO, KEPT, MODES, TRAINED, Choice, Use
from phmctl.backends.products import MKL, PACKED, libraries

EXECUTIONS = {"dense": apply_built, "factored": apply_factored}
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
@pytest.mark.parametrize("constant", [None, 0, 1, 2, 3])
def test_gradients_of_gradients(name: str, constant: int | None) -> None:
    inputs = [part.requires_grad_(place != constant) for place, part in enumerate(draw(2, 2, 3, 4))]
    assert torch.autograd.gradgradcheck(EXECUTIONS[name], inputs)


@names
@pytest.mark.parametrize("library", libraries())
def test_gradients_by_every_library(name: str, library: str) -> None:
    inputs = [part.float().requires_grad_() for part in draw(4, 3, 5, 6)]
    exact = [part.detach().double().requires_grad_() for part in inputs]
    gradient = torch.ones(6, 12)
    y = EXECUTIONS[name](*inputs, library)
    found = torch.autograd.grad(y, inputs, gradient)
    x, A, S, bias = exact
    expected = x @ materialise_reference(A, S).T + bias
    torch.testing.assert_close(y, expected.float(), rtol=1e-5, atol=1e-5)
    for mine, theirs in zip(found, torch.autograd.grad(expected, exact, gradient.double()), strict=True):
        torch.testing.assert_close(mine, theirs.float(), rtol=1e-5, atol=1e-5)


def test_a_profiler_sees_h_built() -> None:
    x, A, S, bias = (part.requires_grad_() for part in draw(2, 2, 3, 4))
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        apply_built(x, A, S, bias)
    assert "phmctl::kronecker_sum" in {event.key for event in profiler.key_averages()}


@names
@pytest.mark.parametrize("shape", [(2, 3, 2, 4), (2, 2, 3, 6)])
def test_gradients_of_an_input_that_is_not_contiguous(name: str, shape: tuple[int, int, int, int]) -> None:
    x, A, S, bias = draw(*shape)
    x = x.T.contiguous().T.requires_grad_()
    assert torch.autograd.gradcheck(lambda x: EXECUTIONS[name](x, A, S, bias), (x,))


def use(mode: str = KEPT, *, rank: int = 7, execution: str = AUTO, rule: str = "learned") -> Use:
    return Use(16, 8, 4, rank, 32, mode, rule, execution, "float32", "cpu", 1, "+".join(libraries(kept=mode == KEPT)))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("rule", ["learned", "fixed"])
@pytest.mark.parametrize("rank", [0, 7])
def test_every_candidate_can_be_timed(mode: str, rule: str, rank: int) -> None:
    found = candidates(use(mode, rank=rank, rule=rule))
    names = ["dense", "factored", "rank"] if rank else ["dense", "factored"]
    packed = {Choice("dense", PACKED)} & {Choice("dense", library) for library in libraries(kept=mode == KEPT)}
    assert set(found) == {Choice(name, library) for name in names for library in libraries()} | packed
    for call in found.values():
        call()


@pytest.mark.parametrize("mode", MODES)
def test_candidates_compute_the_same(mode: str) -> None:
    results = {}
    for name, applied in _random_map(use(mode, rule="fixed"))[0].items():
        for library in libraries():
            results[name, library] = applied(library)
    dense = results["dense", libraries()[0]]
    for (name, _), y in results.items():
        if name == "factored":  # a random rule and random factors have nothing to do with each other
            torch.testing.assert_close(y, dense, rtol=1e-5, atol=1e-5)


def test_gradients_are_taken_of_what_a_layer_trains() -> None:
    for rank, rule, count in ((0, "learned", 4), (7, "learned", 6), (7, "fixed", 3)):
        leaves = _random_map(use(TRAINED, rank=rank, rule=rule))[1]
        assert (len(leaves), all(part.requires_grad for part in leaves)) == (count, True)


def test_what_is_asked_for_is_what_is_timed() -> None:
    assert {choice.execution for choice in candidates(use(execution="rank"))} == {"rank"}


def test_without_measuring_it_is_dense() -> None:
    for tokens in (0, 1, 4096):
        assert choose(tokens, 2048, 2048, 8, 24, mode=TRAINED) == Choice("dense", MKL)
    assert choose(4096, 64, 64, 4, 7, mode=KEPT, execution="rank").execution == "rank"


def test_small_kept_weights_are_not_measured(measuring: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "lowest_seconds", lambda *_: pytest.fail("measured"))
    assert choose(3, 512, 512, 4, 7, mode=KEPT) == Choice("dense", MKL)
    assert choose(4096, 512, 512, 4, 7, mode=TRAINED, device="meta") == Choice("dense", MKL)
