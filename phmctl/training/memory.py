"""The memory that a training step will want, found by tracing the step on tensors that have shapes but no content.

The trace runs the recipe's own model, so what is counted is what autograd keeps. It is an estimate all the same: the
allocator's slack, kernels' workspaces, Python and the libraries (some hundred MB) come on top, and the batch is taken
as full, with all sentences of one typical length.
"""

from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.models.transformer import build_transformer
from phmctl.nn.loss import vocabulary_loss
from phmctl.recipe.schema import TranslationRecipe

TYPICAL_LENGTH = 32  # tokens of a sentence; activations depend on it only through the attention's maps
_FLOAT = 4  # bytes of a float32 number


@dataclass(frozen=True)
class MemoryExpectation:
    """What a step keeps in memory at its fullest, in bytes, and the batch that this was computed for.

    Attributes:
        sentences: of a micro-batch.
        length: tokens of each side.
        micro_batches: of an optimiser step.
        parameters: float32 weights.
        gradients: as many.
        moments: Adam's two.
        activations: what the forward pass keeps for the backward pass.
    """

    sentences: int
    length: int
    micro_batches: int
    parameters: int
    gradients: int
    moments: int
    activations: int

    @property
    def total(self) -> int:
        """All of it, in bytes."""
        return self.parameters + self.gradients + self.moments + self.activations

    def as_json(self) -> dict[str, Any]:
        """Return the fields and the total."""
        return asdict(self) | {"total": self.total}


def expect_memory(recipe: TranslationRecipe, vocabularies: tuple[int, int] | None = None) -> MemoryExpectation:
    """Trace a recipe's training step; no memory is allocated for its tensors.

    Args:
        recipe: the experiment.
        vocabularies: source and target tokenizer sizes; those that the recipe asks for by default.

    Raises:
        DimensionError: n does not divide a dimension.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode

    source, target = vocabularies or (recipe.data.vocabulary, recipe.data.vocabulary)
    length = min(TYPICAL_LENGTH, recipe.data.max_tokens)
    sentences = max(recipe.training.batch_tokens // length, 1)
    with FakeTensorMode():
        model = build_transformer(recipe.model, source, target, "cpu")
        activations = _kept_bytes(model, sentences, length, recipe.training.precision)
    weights = _FLOAT * sum(parameter.numel() for parameter in model.parameters())
    accumulate = recipe.training.accumulate
    return MemoryExpectation(sentences, length, accumulate, weights, weights, 2 * weights, activations)


def _kept_bytes(model: nn.Module, sentences: int, length: int, precision: str) -> int:
    """Return the bytes of all distinct storages, parameters aside, that the forward pass saves."""
    own = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in own:
            kept[storage._cdata] = storage
        return tensor

    ids = torch.ones(sentences, length, dtype=torch.int64)  # (B, T)
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "bfloat16")
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), autocast:
        hidden = model(ids, ids)  # (B, T, d)
        weight, bias = model.output_map()  # type: ignore[operator]
        loss, _ = vocabulary_loss(hidden, weight, bias, ids)
    del loss
    return sum(storage.nbytes() for storage in kept.values())
