"""A stack of layers: the one place where states go through them, in training and in a decoding step alike."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from torch import Tensor, nn

from phmctl.models.state import LayerCache


class Stack(nn.Module):
    """Layers one after another.

    It is indexed, counted and iterated as a ``nn.ModuleList`` of its layers, and names their parameters as one does.

    A composition makes the stack's output of all layers' outputs, not of the input (Li et al. 2020, eq. 5). It looks at
    one position at a time, so that a decoding step composes what the step computed and keeps nothing for the next.

    Args:
        layers: modules that map states (B, T, d) to states (B, T, d).
        composition: maps the list of the layers' outputs to the stack's; None is the top layer's.
    """

    def __init__(self, layers: Iterable[nn.Module], composition: nn.Module | None = None) -> None:
        super().__init__()
        self._count = 0
        for layer in layers:
            self.add_module(str(self._count), layer)
            self._count += 1
        self.composition = composition

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        return self._modules[str(range(self._count)[index])]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(self._count))

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        """Take states (B, T, d) through all layers, each with the same `context`: masks, a memory."""
        return self._through(x, lambda index, states: self[index](states, *context))

    def step(self, x: Tensor, caches: Sequence[LayerCache], mask: Tensor | None) -> Tensor:
        """Take one position of K beams, (B, K, d), through all layers, each with its own past."""
        return self._through(x, lambda index, states: self[index].step(states, caches[index], mask))

    def _through(self, x: Tensor, layer: Callable[[int, Tensor], Tensor]) -> Tensor:
        parts = []
        for index in range(self._count):
            x = layer(index, x)
            if self.composition is not None:
                parts.append(x)
        return x if self.composition is None else self.composition(parts)
