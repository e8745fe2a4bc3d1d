"""The memory that a dry run expects."""

import pytest
import torch

from phmctl.assembly import build_transformer
from phmctl.recipe.loading import load_recipe
from phmctl.tasks.translation.kind import KIND, TYPICAL_LENGTH
from phmctl.training.memory import _kept_bytes, expect_memory
from tests.training.copying import copying_recipe


def test_weights_gradients_and_moments_follow_from_the_parameters() -> None:
    recipe = copying_recipe()
    expected = expect_memory(recipe, {"source": 80, "target": 60})
    parameters = sum(p.numel() for p in build_transformer(recipe.model, 80, 60).parameters())
    assert expected.parameters == expected.gradients == 4 * parameters
    assert expected.moments == 8 * parameters
    assert expected.total == 16 * parameters + expected.activations


def test_the_batch_fills_its_budget() -> None:
    expected = expect_memory(copying_recipe(batch_tokens=640, accumulate=3))
    assert (expected.sentences, expected.length, expected.micro_batches) == (40, 16, 3)
    assert TYPICAL_LENGTH == 32


def test_the_traced_activations_are_those_of_a_real_step() -> None:
    """The same count on tensors with content: what autograd keeps does not depend on the trace."""
    recipe = copying_recipe()
    expected = expect_memory(recipe)
    model = build_transformer(recipe.model, 80, 80)
    assert _kept_bytes(model, KIND.typical_batch(recipe).loss, "float32") == expected.activations


def test_a_linear_map_keeps_its_input() -> None:
    class Map(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(7, 6)
            self.linear = torch.nn.Linear(6, 5)

        def forward(self, source: torch.Tensor) -> torch.Tensor:
            return self.linear(self.table(source)).sum()

    ids, states = 2 * 3 * 8, 2 * 3 * 6 * 4  # the embedding keeps int64 ids, the map its float32 input
    assert _kept_bytes(Map(), lambda model: model(torch.ones(2, 3, dtype=torch.int64)), "float32") == ids + states


def test_bfloat16_keeps_less() -> None:
    full, half = (expect_memory(copying_recipe(precision=name)) for name in ("float32", "bfloat16"))
    assert half.activations < full.activations
    assert half.parameters == full.parameters


def test_more_positions_want_more() -> None:
    small, large = (expect_memory(copying_recipe(batch_tokens=size)).activations for size in (512, 1024))
    assert 1.8 * small < large < 2.2 * small


@pytest.mark.parametrize("name", ["table1-snli", "table5-agreement", "hamilton"])
def test_other_tasks_are_traced_too(name: str) -> None:
    recipe = load_recipe(name, ["training.batch_size=4"])
    expected = expect_memory(recipe)
    assert expected.sentences == 4
    assert expected.activations > 0
    assert expected.moments == 2 * expected.parameters
