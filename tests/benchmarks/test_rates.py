"""``bench rates``: a row for each factor; steps of S and of the dense weight change the output alike."""

from pathlib import Path

import pytest

from phmctl.benchmarks.rates import bench_rates
from phmctl.recipe.loading import load_recipe
from tests.conftest import TINY


@pytest.mark.parametrize(
    ("settings", "factors"),
    [((), {"weight"}), (("model.algebra=phm", "model.n=4"), {"A", "S"}), (("model.algebra=quaternion",), {"S"})],
)
def test_a_step_changes_the_output_like_a_step_of_the_dense_weight(
    settings: tuple[str, ...], factors: set[str], miniature_data: Path
) -> None:
    rows = bench_rates(load_recipe("miniature", [*TINY, "model.width=64", *settings]), miniature_data)
    maps = [row for row in rows if row["map"] != "source_embedding"]
    assert {row["factor"] for row in maps} == factors
    changes = [row["change"] for row in maps if row["factor"] != "A"]
    bound = (0.999, 1.001) if "weight" in factors else (0.5, 2.0)
    assert bound[0] < min(changes) <= max(changes) < bound[1]
    learning_rate = load_recipe("miniature").training.learning_rate
    assert all(row["rate"] == pytest.approx(learning_rate * row["multiple"]) for row in rows)


def test_a_narrow_table_and_its_map_have_rows(miniature_data: Path) -> None:
    recipe = load_recipe("miniature", [*TINY, "model.algebra=phm", "model.n=4", "model.embedding_width=16"])
    rows = [row for row in bench_rates(recipe, miniature_data) if row["map"] == "source_embedding"]
    assert [row["factor"] for row in rows] == ["table.weight", "map.A", "map.S"]
    assert all(0.1 < row["change"] < 10 for row in rows)
