"""Kronecker sums, the nearest sum of a weight, and the check that n divides the dimensions."""

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from phmctl.algebra import modes
from phmctl.algebra.dimension import check_divides
from phmctl.algebra.kronecker import fixed_rule, kronecker_gradients, kronecker_sum, kronecker_sums, nearest_sum
from phmctl.errors import DimensionError
from tests.references import Watch, kronecker_sum_reference

shapes = st.tuples(st.integers(1, 6), st.integers(1, 5), st.integers(1, 5), st.integers(0, 2**16))


def draw(n: int, rows: int, columns: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    A = torch.randn(n, n, n, dtype=torch.float64, generator=generator)
    return A, torch.randn(n, rows, columns, dtype=torch.float64, generator=generator)


@given(shapes)
def test_h_is_the_sum_of_kronecker_products(shape: tuple[int, int, int, int]) -> None:
    A, S = draw(*shape)
    torch.testing.assert_close(kronecker_sum(A, S), kronecker_sum_reference(A, S))


def appendix_a(B: torch.Tensor, T: torch.Tensor) -> torch.Tensor:
    """Return H of eqs. A.1 and A.2: column (i, j) is ψ(B_i T_j), the concatenated rows of the product."""
    columns = [(B_i @ T_j).reshape(-1) for B_i in B for T_j in T]  # (k,) each
    return torch.stack(columns, dim=1)  # (k, d)


@given(shapes)
def test_appendix_a_is_a_kronecker_sum_with_permuted_axes(shape: tuple[int, int, int, int]) -> None:
    n, rows, columns, seed = shape
    generator = torch.Generator().manual_seed(seed)
    B = torch.randn(n, n, n, dtype=torch.float64, generator=generator)
    T = torch.randn(columns, n, rows, dtype=torch.float64, generator=generator)
    A = B.permute(2, 1, 0)  # A[b, a, i] = B[i, a, b]
    S = T.permute(1, 2, 0)  # S[b, s, j] = T[j, b, s]
    torch.testing.assert_close(kronecker_sum(A, S), appendix_a(B, T))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("learned", [True, False])
def test_several_weights_and_their_gradients_in_one_product(compiled: bool, learned: bool) -> None:
    """As one product, and as the broadcast sum that CUDA compiles; a fixed rule is one for all."""
    torch._dynamo.reset()
    pairs = [draw(4, 3, 5, seed) for seed in range(3)]
    A = torch.stack([A for A, _ in pairs]) if learned else pairs[0][0]
    S = torch.stack([S for _, S in pairs])
    rules = A if learned else A.expand(3, 4, 4, 4)
    expected = torch.stack([kronecker_sum_reference(*pair) for pair in zip(rules, S, strict=True)])
    build, pull_back = kronecker_sums, kronecker_gradients
    if compiled:
        build, pull_back = (torch.compile(f, backend="aot_eager", fullgraph=True) for f in (build, pull_back))
    torch.testing.assert_close(build(A, S, torch.float64), expected)
    assert build(A, S, torch.bfloat16).dtype == torch.bfloat16
    dH = torch.randn(3, 12, 20, dtype=torch.float64)
    leaves = [A.clone().requires_grad_(), S.clone().requires_grad_()]
    rules = leaves[0] if learned else leaves[0].expand(3, 4, 4, 4)
    H = torch.stack([kronecker_sum(*pair) for pair in zip(rules, leaves[1], strict=True)])
    dA, dS = torch.autograd.grad(H, leaves, dH)
    torch.testing.assert_close(pull_back(A, S, dH, learned), (dA if learned else None, dS))


def test_no_temporary_is_larger_than_h() -> None:
    A, S = draw(8, 16, 16)
    sizes = []
    with Watch(lambda _, result: sizes.append(result.numel())):
        H = kronecker_sum(A, S)
    assert max(sizes) == H.numel()


# --- the nearest sum


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8])
def test_a_sum_of_n_products_is_recovered(n: int) -> None:
    weight = kronecker_sum_reference(*draw(n, 6, 7))
    A, S, error = nearest_sum(weight, n)
    torch.testing.assert_close(kronecker_sum(A, S), weight)
    assert error < 1e-12


@pytest.mark.parametrize(("n", "algebra"), [(2, "phm"), (3, "phm"), (2, "complex"), (4, "quaternion")])
def test_the_nearest_sum_is_a_stationary_point_with_the_returned_error(n: int, algebra: str) -> None:
    weight = torch.randn(12, 20 if n == 4 else 18, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    A, S, error = nearest_sum(weight, n, algebra)
    squared_error = (weight - kronecker_sum(A.requires_grad_(), S.requires_grad_())).square().sum()
    assert error == pytest.approx(squared_error.sqrt().item() / weight.norm().item())
    assert 0.1 < error < 1
    squared_error.backward()
    assert S.grad.abs().max() < 1e-10
    if algebra == "phm":
        assert A.grad.abs().max() < 1e-10
    else:
        assert torch.equal(A, fixed_rule(algebra, dtype=torch.float64))


def test_the_rule_has_the_scale_of_an_initialised_rule() -> None:
    A, _, _ = nearest_sum(torch.randn(32, 64), 4)
    assert A.square().sum(dim=0).mean().item() == pytest.approx(1, rel=1e-5)
    assert A.dtype == torch.float32


@pytest.mark.parametrize("weight", [torch.randn(4, 4, dtype=torch.float64), torch.zeros(4, 4)])
def test_a_weight_with_fewer_terms_than_n_has_no_zero_rules(weight: torch.Tensor) -> None:
    A, S, error = nearest_sum(weight, 4)  # 16 × 1: a single term
    torch.testing.assert_close(kronecker_sum(A, S), weight)
    assert error == 0
    assert A.abs().sum(dim=(1, 2)).min() > 0


def test_a_function_that_cannot_be_compiled_is_called_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(function: object) -> object:
        def call(*arguments: object) -> object:
            raise RuntimeError(message)

        return call

    monkeypatch.setattr(modes, "_compiled", {})
    monkeypatch.setattr(torch, "compile", fails)
    message = "Failed to find C compiler"
    with pytest.warns(RuntimeWarning) as warnings:
        assert [modes.fused(abs, torch.device("cuda"), -3) for _ in range(2)] == [3, 3]
    assert len(warnings) == 1
    message = "CUDA out of memory"
    with pytest.raises(RuntimeError, match="memory"):
        modes.fused(len, torch.device("cuda"), "")
    assert modes.fused(abs, torch.device("cpu"), -3) == 3


# --- the check that n divides the dimensions


def test_n_that_divides_every_dimension_is_accepted() -> None:
    check_divides(4, in_features=512, out_features=100)


@pytest.mark.parametrize(
    ("n", "dimensions", "place"),
    [
        (3, {"in_features": 512}, r"n = 3 .*in_features = 512; .*n = 2 or 4$"),
        (8, {"a": 16, "b": 12}, r"n = 8 .*b = 12; .*n = 4$"),
        (3, {"a": 7, "b": 5}, r"n = 3 .*a = 7 and b = 5; .*n = 1$"),
        (7, {"a": 512}, r"n = 7 .*a = 512; .*n = 4 or 8$"),
        (0, {"a": 4}, "^n = 0"),
        (2, {"a": 0}, "^a = 0"),
        (True, {"a": 4}, "^n = True"),
        (2.0, {"a": 4}, r"^n = 2\.0"),
        (numpy.array([2, 2]), {"a": 4}, r"^n = array"),
    ],
)
def test_an_error_names_the_dimension_and_the_nearest_n(n: int, dimensions: dict[str, int], place: str) -> None:
    with pytest.raises(DimensionError, match=place):
        check_divides(n, **dimensions)
