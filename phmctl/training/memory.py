"""The memory that a training step will want, found by tracing the step on tensors that have shapes but no content.

The trace runs the recipe's own model, so what is counted is what autograd keeps. It is an estimate all the same: the
allocator's slack, kernels' workspaces, Python and the libraries (some hundred MB) come on top, and the batch is taken
as full, with all sentences of one typical length.
"""

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.recipe.schema import Recipe
from phmctl.tasks.registry import kind_of

_FLOAT = 4  # bytes of a float32 number


@dataclass(frozen=True)
class MemoryExpectation:
    """What a step keeps in memory at its fullest, in bytes, and the batch that this was computed for.

    Attributes:
        sentences: rows of a micro-batch.
        length: tokens of each.
        micro_batches: of an optimiser step.
        parameters: float32 weights.
        gradients: as many.
        moments: Adam's two.
        activations: what the forward pass keeps for the backward pass.
        words: what the rows of a micro-batch are, for people.
    """

    sentences: int
    length: int
    micro_batches: int
    parameters: int
    gradients: int
    moments: int
    activations: int
    words: str = ""

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.parameters + self.gradients + self.moments + self.activations

    def as_json(self) -> dict[str, Any]:
        """Return the numbers and their total."""
        numbers = {key: value for key, value in asdict(self).items() if key != "words"}
        return numbers | {"total": self.total}


def expect_memory(recipe: Recipe, sizes: Mapping[str, int] | None = None) -> MemoryExpectation:
    """Trace a recipe's training step; no memory is allocated for its tensors.

    Args:
        recipe: the experiment.
        sizes: what the data decides of the model's size; by default what the recipe asks for.

    Raises:
        DimensionError: n does not divide a dimension.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    kind = kind_of(recipe)
    batch = kind.typical_batch(recipe)
    with FakeTensorMode():
        model = kind.build(recipe.model, kind.sizes(recipe).values if sizes is None else sizes, "cpu")
        activations = _kept_bytes(model, batch.loss, recipe.training.precision)
    weights = _FLOAT * sum(parameter.numel() for parameter in model.parameters())
    accumulate = recipe.training.accumulate
    numbers = (accumulate, weights, weights, 2 * weights, activations)
    return MemoryExpectation(batch.rows, batch.length, *numbers, words=batch.words)


def _kept_bytes(model: nn.Module, loss: Callable[[nn.Module], Tensor], precision: str) -> int:
    """Return the bytes of all distinct storages, parameters aside, that the forward pass saves."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        total = loss(model)
    del total
    return sum(storage.nbytes() for storage in kept.values())
