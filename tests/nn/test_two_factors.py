"""Maps of two thin factors: their definition, variance, counts and dense form."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from phmctl.errors import DimensionError, RecipeError
from phmctl.nn.convert import to_dense
from phmctl.nn.linear import TwoFactorLinear
from phmctl.recipe.loading import resolve
from phmctl.results.ledger import ledger_for_recipe

MONARCH = ["model.algebra=monarch", "model.n=2"]
SHAPES = st.tuples(*[st.integers(1, 4)] * 5)  # blocks, d/N, k/N, m/N, tokens


def _definition(layer: TwoFactorLinear) -> torch.Tensor:
    """Return L P R as matrices: entry j of block i goes to jN + i."""
    N, m = layer.structure.blocks, layer.structure.inner
    P = torch.zeros(m, m, dtype=torch.float64)
    for block in range(N):
        for number in range(m // N):
            P[number * N + block, block * (m // N) + number] = 1
    return torch.block_diag(*layer.L.double()) @ P @ torch.block_diag(*layer.R.double())


@settings(deadline=None)
@given(SHAPES)
def test_it_is_the_product_of_its_matrices(shape: tuple[int, ...]) -> None:
    N, d, k, m, tokens = shape
    layer = TwoFactorLinear(N * d, N * k, blocks=N, inner=N * m).double()
    nn.init.normal_(layer.bias)  # type: ignore[arg-type]
    x = torch.randn(2, tokens, N * d, dtype=torch.float64)
    weight = _definition(layer)
    torch.testing.assert_close(layer(x), x @ weight.T + layer.bias)
    torch.testing.assert_close(layer.weight, weight)
    torch.testing.assert_close(to_dense(layer)(x), layer(x))


@pytest.mark.parametrize("blocks", [1, 2])
def test_gradients(blocks: int) -> None:
    layer = TwoFactorLinear(4, 6, blocks=blocks, inner=2).double()
    x = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)

    def apply(x: torch.Tensor, R: torch.Tensor, L: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(layer, {"R": R, "L": L, "bias": bias}, (x,))

    assert torch.autograd.gradcheck(apply, (x, layer.R, layer.L, layer.bias))


@pytest.mark.parametrize("blocks", [1, 2])
def test_it_has_the_dtype_of_autocast(blocks: int) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert TwoFactorLinear(4, 6, blocks=blocks, inner=2)(torch.randn(3, 4)).dtype == torch.bfloat16


@pytest.mark.parametrize(("blocks", "inner"), [(1, 32), (8, 256)])
def test_it_begins_with_the_variance_of_the_dense_map(blocks: int, inner: int) -> None:
    torch.manual_seed(0)
    layer = TwoFactorLinear(256, 512, blocks=blocks, inner=inner, splits=2)
    y = layer(torch.randn(512, 256))
    assert y.var().item() == pytest.approx(256 * 2 / (256 + 256), rel=0.1)
    assert torch.equal(layer.bias, torch.zeros(512))  # type: ignore[arg-type]


def test_blocks_that_do_not_divide() -> None:
    with pytest.raises(DimensionError, match="in_features = 8"):
        TwoFactorLinear(8, 12, blocks=3, inner=6)


# ------------------------------------------------------------------------------------------------------ in a recipe


@pytest.mark.parametrize(
    ("changes", "variant", "weights"),
    [
        (["model.algebra=low-rank", "model.rank=16"], "low-rank-r16", lambda d, k: 16 * (d + k)),
        (["model.algebra=monarch", "model.n=4"], "monarch-n4", lambda d, k: min(d, k) * (d + k) // 4),
    ],
)
def test_the_ledger_counts_its_maps(changes: list[str], variant: str, weights: Callable[[int, int], int]) -> None:
    recipe = resolve("miniature", changes)
    ledger = ledger_for_recipe(recipe)
    assert recipe.variant == variant
    maps = [row for row in ledger.rows if row.kind == "map"]
    assert maps
    assert all(row.components == weights(*row.shape) for row in maps)
    assert ledger.totals.dense == ledger_for_recipe(resolve("miniature", ["model.algebra=real"])).totals.dense


@pytest.mark.parametrize(
    ("name", "changes", "place"),
    [
        ("miniature", ["model.algebra=low-rank"], "rank"),
        ("miniature", ["model.algebra=monarch"], "monarch.* n "),
        ("miniature", ["model.algebra=monarch", "model.n=5"], "n = 5"),
        ("miniature", ["model.algebra=low-rank", "model.rank=4", "model.n=2"], "n = 1"),
        ("miniature", [*MONARCH, "model.rank=4"], "rank"),
        ("miniature", [*MONARCH, "model.execution=rank"], "execution"),
        ("miniature", [*MONARCH, "model.rules=model"], "rules"),
        ("miniature", [*MONARCH, "model.embeddings=phm"], "embeddings"),
        ("table1-mnli", MONARCH, "Transformers"),
        ("ni-multi30k-en-de", MONARCH, "composition_maps"),
    ],
)
def test_recipes_that_cannot_have_them(name: str, changes: list[str], place: str) -> None:
    with pytest.raises(RecipeError, match=place):
        resolve(name, changes)
