"""Compositions against their equations in float64: full bilinear pooling, terms one by one, gradients, variance."""

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from phmctl.errors import DimensionError
from phmctl.nn.composition import BilinearComposition, HierarchicalComposition, LinearComposition
from phmctl.nn.layers import LinearBuilder
from tests.references import Watch

CHOICES = [("real", 1), ("phm", 2), ("quaternion", 4)]
N, WIDTH, RANK = 4, 8, 12
KINDS = ["linear", "hierarchical", "bilinear", "second-order", "heads-hierarchical", "heads-bilinear"]


def build(
    kind: str,
    algebra: str = "real",
    n: int = 1,
    *,
    N: int = N,
    width: int = WIDTH,
    rank: int = RANK,
    seed: int = 0,
    **options: Any,
) -> nn.Module:
    torch.manual_seed(seed)
    builder = LinearBuilder(algebra, n, **options)
    match kind:
        case "linear":
            composition: nn.Module = LinearComposition(builder, [width] * N, width)
        case "hierarchical":
            composition = HierarchicalComposition(builder, N, width, 4 * width, width)
        case "heads-hierarchical":
            composition = HierarchicalComposition(builder, N, width, 4 * width, N * width, joined=True)
        case "heads-bilinear":
            composition = BilinearComposition(builder, [N * width], N * width, rank)
        case _:
            composition = BilinearComposition(builder, [width] * N, width, rank, first_order=kind == "bilinear")
    return composition.double()


def parts_of(kind: str, rows: int = 3) -> list[Tensor] | Tensor:
    joined = torch.randn(rows, N * WIDTH, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    return joined if kind.startswith("heads") else list(joined.split(WIDTH, -1))


def matrix(composition: LinearComposition) -> Tensor:
    """W of all parts, (out, Σw)."""
    return torch.cat([part.weight for part in composition.maps], dim=1)  # type: ignore[arg-type]


@pytest.mark.parametrize(("algebra", "n"), CHOICES)
@pytest.mark.parametrize("kind", ["second-order", "bilinear", "heads-bilinear"])
def test_low_rank_is_full_bilinear_pooling_with_the_same_w(kind: str, algebra: str, n: int) -> None:
    """Eq. 6 and 8: the outer product of R̂ (and the 1) with itself, times W^B of rank r."""
    model, parts = build(kind, algebra, n), parts_of(kind)
    joined = parts if isinstance(parts, Tensor) else torch.cat(parts, dim=-1)
    U, V = matrix(model.U), matrix(model.V)  # type: ignore[arg-type]  # (r, Nd)
    if kind != "second-order":
        nn.init.normal_(model.V.maps[0].bias)  # type: ignore[union-attr,arg-type,index]
        joined = torch.cat([joined, torch.ones_like(joined[:, :1])], dim=-1)  # (B, Nd + 1)
        U, V = (
            torch.cat([W, part.maps[0].bias[:, None]], dim=1)  # type: ignore[union-attr,index]
            for W, part in ((U, model.U), (V, model.V))
        )
    full = torch.einsum("ok,kj,kl->ojl", model.P.weight, U, V)  # type: ignore[arg-type]  # W^B, (d, Nd, Nd)
    outer = joined[:, :, None] * joined[:, None, :]  # (B, Nd, Nd)
    torch.testing.assert_close(model(parts), torch.einsum("bjl,ojl->bo", outer, full))
    assert max(torch.linalg.matrix_rank(form).item() for form in full) <= RANK


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("algebra", "n"), [("real", 1), ("phm", 2)])
def test_gradients(kind: str, algebra: str, n: int) -> None:
    model, parts = build(kind, algebra, n, rank=4), parts_of(kind, rows=2)
    joined = isinstance(parts, Tensor)
    inputs = [part.clone().requires_grad_() for part in ([parts] if joined else parts)]
    parameters = list(model.parameters())

    def function(*tensors: Tensor) -> Tensor:
        leaves = tensors[: len(inputs)]
        return model(leaves[0] if joined else list(leaves))  # type: ignore[no-any-return]

    assert torch.autograd.gradcheck(function, (*inputs, *parameters), fast_mode=True)


def test_linear_is_a_map_of_all_parts_side_by_side_or_in_a_list() -> None:
    model, parts = build("linear", "phm", 2), parts_of("linear")
    joined = torch.cat(list(parts), -1)
    torch.testing.assert_close(model(parts), joined @ matrix(model).T)  # type: ignore[arg-type]
    torch.testing.assert_close(model(joined), model(parts))


@pytest.mark.parametrize("kind", ["hierarchical", "heads-hierarchical"])
def test_the_tree_by_its_equation(kind: str) -> None:
    """Dou et al. 2018: each node joins two parts and the node before it, with a residual and a layer norm."""
    model, parts = build(kind, "phm", 2), parts_of(kind)
    x = list(parts.split(WIDTH, -1)) if isinstance(parts, Tensor) else parts
    below: list[Tensor] = []
    for index, node in enumerate(model.nodes):  # type: ignore[arg-type,union-attr]
        inputs = [x[2 * index], x[2 * index + 1], *below]
        hidden = torch.cat(inputs, -1) @ matrix(node.expand).T + node.expand.maps[0].bias
        residual = node.project(torch.stack(inputs).sum(0))
        below = [nn.functional.layer_norm(node.contract(hidden.relu()) + residual, [residual.shape[-1]])]
    torch.testing.assert_close(model(parts), below[0])
    assert len(model.nodes) == N // 2  # type: ignore[arg-type]


@settings(max_examples=12)  # each builds eight models
@given(
    st.sampled_from(["linear", "hierarchical", "bilinear", "second-order", "heads-bilinear"]),
    st.sampled_from([("real", 1), ("phm", 2), ("phm", 4), ("quaternion", 4)]),
    st.sampled_from([2, 6]),
)
def test_it_begins_with_the_variance_of_its_parts(kind: str, choice: tuple[str, int], number: int) -> None:
    width, heads = 128, kind.startswith("heads")
    rank = number * width if heads else width
    variances = []
    for seed in range(8):  # one rule of n = 2 has eight numbers: a single draw strays by a quarter
        model = build(kind, *choice, N=number, width=width, rank=rank, seed=seed)
        joined = torch.randn(256, number * width, dtype=torch.float64)
        with torch.no_grad():
            variances.append(model(joined if heads else joined.split(width, -1)).var().item())
    assert 0.85 < (sum(variances) / len(variances)) ** 0.5 < 1.15


def test_the_extended_form_keeps_the_variance_of_small_parts_too() -> None:
    """Attention's means have a variance far below one; the pure form gives its square."""
    torch.manual_seed(0)
    builder, x = LinearBuilder("real", 1), 0.1 * torch.randn(256, 256)
    with torch.no_grad():
        extended = BilinearComposition(builder, [256], 256, 256)(x).std()
        pure = BilinearComposition(builder, [256], 256, 256, first_order=False)(x).std()
    assert 0.085 < extended < 0.115
    assert 0.005 < pure < 0.015


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("algebra", "n"), [("real", 1), ("phm", 2)])
def test_parts_are_never_copied_side_by_side(kind: str, algebra: str, n: int) -> None:
    model, parts = build(kind, algebra, n), parts_of(kind)
    names: set[str] = set()
    with Watch(lambda operation, _: names.add(operation._schema.name)):
        model(parts)
    assert "aten::mm" in names
    assert not names & {"aten::cat", "aten::stack"}


def test_impossible_compositions_are_refused() -> None:
    builder = LinearBuilder("phm", 4)
    with pytest.raises(DimensionError, match="5 parts"):
        HierarchicalComposition(builder, 5, 8, 32, 8)
    with pytest.raises(DimensionError, match="n = 4"):
        BilinearComposition(builder, [8, 8], 8, 6)
    BilinearComposition(builder, [8, 8], 8, 4)  # 8 + 8 + 1 features are not to be divided: the 1 is a bias
    with pytest.raises(DimensionError, match="2 parts"):
        LinearComposition(builder, [8, 8], 8)([torch.zeros(1, 8)])


@pytest.mark.parametrize(("kind", "maps"), [("heads-bilinear", 3), ("bilinear", 2 * N + 1), ("linear", N)])
def test_products(kind: str, maps: int) -> None:
    """U, V and P are one product each over all heads; layers have one a part."""
    model, calls = build(kind), []
    for part in model.modules():
        if hasattr(part, "in_features"):
            part.register_forward_hook(lambda *_: calls.append(1))
    model(parts_of(kind))
    assert len(calls) == maps
