"""Low-rank maps: their definition, variance, counts and dense form."""

import pytest
import torch

from phmctl.errors import DimensionError, RecipeError
from phmctl.nn.convert import to_dense
from phmctl.nn.linear import LowRankLinear
from phmctl.recipe.loading import resolve
from phmctl.results.ledger import ledger_for_recipe


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
