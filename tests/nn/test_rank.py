"""A learned rule of rank R, by block products and by H, and maps of low rank."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from phmctl import PHMLinear
from phmctl.errors import DimensionError, RecipeError, UserError
from phmctl.nn.convert import to_dense
from phmctl.nn.linear import LowRankLinear
from phmctl.recipe.loading import resolve
from phmctl.results.ledger import ledger_for_recipe
from tests.references import kronecker_sum_reference


def by_definition(layer: PHMLinear, x: Tensor) -> Tensor:
    return x.double() @ kronecker_sum_reference(layer.A, layer.S).T + layer.bias.double()


def by_rank(d: int = 24, k: int = 16, n: int = 4, **options: object) -> PHMLinear:
    torch.manual_seed(0)
    return PHMLinear(d, k, n=n, **({"rank": 7, "execution": "rank"} | options))


def test_float32_is_exact_to_rounding() -> None:
    layer, x = by_rank(512, 512, 8, rank=24), torch.randn(256, 512)
    exact = by_definition(layer, x)
    assert ((layer(x) - exact).norm() / exact.norm()).item() < 5e-6


@pytest.mark.parametrize(("n", "rank"), [(2, 2), (3, 2), (4, 4), (4, 7), (8, 12), (16, 16)])
def test_h_begins_with_the_dense_variance(n: int, rank: int) -> None:
    torch.manual_seed(0)
    weights = [PHMLinear(240, 240, n=n, rank=rank).weight for _ in range(6)]
    assert torch.stack(weights).var().item() == pytest.approx(1 / (3 * 240), rel=0.15)


@pytest.mark.parametrize(
    ("d", "options", "execution"),
    [
        (512, {"rank": 4}, "rank"),
        (512, {"rank": 7}, "dense"),  # R/n² = 0.44
        (256, {"rank": 4}, "dense"),
        (512, {}, "dense"),
        (512, {"algebra": "quaternion"}, "dense"),
        (512, {"rank": 4, "dtype": torch.bfloat16}, "dense"),
        (4096, {"rank": 4, "device": "meta"}, "dense"),
    ],
)
def test_the_default_execution(d: int, options: dict[str, object], execution: str) -> None:
    layer = PHMLinear(d, 512, n=4, **options)
    assert layer.execution == execution
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.execution == "dense"
    layer.execution = "dense"
    layer.execution = None
    assert layer.execution == execution


def test_impossible_executions_and_inputs_are_refused() -> None:
    with pytest.raises(UserError):
        by_rank()(torch.ones(2, 24, dtype=torch.long))
    with pytest.raises(DimensionError):
        by_rank()(torch.ones(2, 36))
    with pytest.raises(UserError):
        by_rank().share_rule(PHMLinear(24, 24, n=2))


def test_backward_within_autocast_of_a_forward_pass_without_it() -> None:
    x, gradients = torch.randn(5, 24), []
    for within in (False, True):
        layer = by_rank()
        y = layer(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=within):
            gradients.append(torch.autograd.grad(y.sum(), [layer.U, layer.V]))
    torch.testing.assert_close(*gradients)


def bytes_saved(forward: Callable[[], object]) -> int:
    """Return the bytes that a forward pass saves for the backward pass, each storage once."""
    sizes: dict[int, int] = {}

    def pack(saved: Tensor) -> Tensor:
        sizes[saved.untyped_storage().data_ptr()] = saved.untyped_storage().nbytes()
        return saved

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda saved: saved):
        forward()
    return sum(sizes.values())


def test_tensors_saved_for_the_backward_pass() -> None:
    x, layer = torch.randn(2048, 512, requires_grad=True), by_rank(512, 512)
    products = 4 * 2048 * 7 * 512 // 4
    assert products <= bytes_saved(lambda: layer(x)) <= products + 1.3 * bytes_saved(lambda: nn.Linear(512, 512)(x))
    with torch.no_grad():
        assert bytes_saved(lambda: layer(x)) == 0


# ----------------------------------------------------------------------------------------------------- maps of low rank


def test_it_is_the_product_of_its_matrices() -> None:
    layer = LowRankLinear(6, 4, rank=3).double()
    torch.nn.init.normal_(layer.bias)  # type: ignore[arg-type]
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x), x @ (layer.L @ layer.R).T + layer.bias)
    torch.testing.assert_close(layer.weight, layer.L @ layer.R)
    torch.testing.assert_close(to_dense(layer)(x), layer(x))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer.float()(x.float()).dtype == torch.bfloat16


def test_it_begins_with_the_variance_of_the_dense_map() -> None:
    torch.manual_seed(0)
    layer = LowRankLinear(256, 512, rank=32, splits=2)
    y = layer(torch.randn(512, 256))
    assert y.var().item() == pytest.approx(256 * 2 / (256 + 256), rel=0.1)
    assert torch.equal(layer.bias, torch.zeros(512))  # type: ignore[arg-type]
    with pytest.raises(DimensionError):
        LowRankLinear(8, 12, rank=0)


def test_the_ledger_counts_its_maps() -> None:
    tied = ["model.embeddings=dense", "model.generator=tied"]
    recipe = resolve("miniature", ["model.algebra=low-rank", "model.rank=16", *tied])
    ledger = ledger_for_recipe(recipe)
    assert recipe.variant == "low-rank-r16"
    maps = [row for row in ledger.rows if row.kind == "map"]
    assert maps
    assert all(row.components == 16 * sum(row.shape) for row in maps)
    assert ledger.totals.dense == ledger_for_recipe(resolve("miniature", tied)).totals.dense


@pytest.mark.parametrize(
    ("name", "changes", "place"),
    [
        ("miniature", [], "rank"),
        ("miniature", ["model.rank=4", "model.n=2"], "n = 1"),
        ("miniature", ["model.rank=4", "model.rules=model"], "rules"),
        ("miniature", ["model.rank=4"], "embeddings"),
        ("table1-mnli", ["model.rank=4"], "Transformers"),
        ("ni-multi30k-en-de", ["model.rank=4"], "composition_maps"),
    ],
)
def test_recipes_that_cannot_have_them(name: str, changes: list[str], place: str) -> None:
    with pytest.raises(RecipeError, match=place):
        resolve(name, ["model.algebra=low-rank", *changes])
