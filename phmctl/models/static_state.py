"""What decoding keeps between steps, in memory that never moves: the same addresses and shapes at every step.

That is what a CUDA graph wants (:mod:`phmctl.decoding.graphs`). The past has room for a fixed number of positions, and
a mask says which of them are written; where a step stands is a number on the device. Everything here may be recorded
once and run for every step.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from phmctl.models.state import ROOM, DecoderState, LayerCache, by_heads, continued
from phmctl.nn.positions import SinusoidalPositions


@dataclass(frozen=True)
class Shape:
    """How much a static state has room for: B sentences of K beams, S source tokens, t positions."""

    sentences: int
    beams: int
    source: int
    room: int

    @classmethod
    def around(cls, state: "DecoderState | StaticState") -> "Shape":
        """Return a shape, one of few, with room for a state and its next step."""
        source = state.layers[0].memory_keys.shape[2]
        return cls(_power(state.count), state.beams, -(-source // 16) * 16, max(ROOM, _power(state.position + 1)))


class StaticCache(LayerCache):
    """One decoder layer's view of a static state."""

    def __init__(self, state: "StaticState", layer: int, memory: Tensor) -> None:
        self._past, self._place, self.past_mask = state.past[:, layer], state.place, state.past_mask
        self.memory_keys, self.memory_values = memory, torch.zeros_like(memory)

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write a position's key and value, (B·K, heads, 1, head width); return all that there is room for."""
        both = torch.stack([key.flatten(1), value.flatten(1)])  # (2, B·K, inner)
        self._past.index_copy_(0, self._place, both[None])
        return by_heads(self._past, key.shape[1])


class StaticState:
    """A decoder's state of a fixed shape; where fewer sentences live than it has room for, the other rows mean nothing.

    Args:
        like: a state, for the number of layers, the widths, the dtype and the device.
        shape: what to have room for.
        positions: of the model.
    """

    def __init__(self, like: "DecoderState | StaticState", shape: Shape, positions: SinusoidalPositions) -> None:
        self.shape, self.beams, self.count, self.position = shape, shape.beams, 0, 0
        _, layers, _, _, inner = like.past.shape
        keys = like.layers[0].memory_keys
        rows, (heads, width) = shape.sentences * shape.beams, (keys.shape[1], keys.shape[3])
        self.past: Tensor = keys.new_zeros(shape.room, layers, 2, rows, inner)
        self._spare = torch.empty_like(self.past if shape.beams > 1 else self.past[:0])
        self._places = torch.arange(shape.room, device=keys.device)
        self.place: Tensor = self._places[:1].clone()  # (1,) where the next position is written
        self.past_mask: Tensor = (self._places == 0)[None, None, None]  # (1, 1, 1, t)
        self._sines: Tensor = positions(shape.room).clone()  # (t, d)
        self._parents = torch.arange(rows, device=keys.device)  # (B·K,) rows that the live prefixes continue
        self.mask = torch.ones(shape.sentences, 1, 1, shape.source, dtype=torch.bool, device=keys.device)
        memory = shape.sentences, heads, shape.source, width
        self.layers: list[StaticCache] = [StaticCache(self, layer, keys.new_zeros(memory)) for layer in range(layers)]

    def load(self, state: "DecoderState | StaticState") -> None:
        """Take the numbers of another state, a settled one."""
        count, source = state.count, state.layers[0].memory_keys.shape[2]
        rows = count * self.beams
        self.count, self.position = count, state.position
        self.place.fill_(state.position)
        self.past.zero_()  # what an earlier search has left, if not finite, would get through a mask
        self.past[: state.position, :, :, :rows] = state.past[: state.position, :, :, :rows]
        torch.arange(len(self._parents), out=self._parents)
        self.mask.fill_(True)
        self.mask[:count, ..., source:] = False
        if state.mask is not None:
            self.mask[:count, ..., :source] = state.mask[:count]
        for mine, other in zip(self.layers, state.layers, strict=True):
            mine.memory_keys.zero_()[:count, :, :source] = other.memory_keys[:count]
            mine.memory_values.zero_()[:count, :, :source] = other.memory_values[:count]

    def settle(self) -> None:
        """Let each prefix continue its parent's, on the device; a second time it changes nothing."""
        if self.beams > 1:
            torch.index_select(self.past, 3, self._parents, out=self._spare)
            self.past.copy_(self._spare)
            torch.arange(len(self._parents), out=self._parents)

    def begin(self) -> None:
        """Do, on the device, what stands before each step."""
        self.settle()
        torch.le(self._places, self.place, out=self.past_mask[0, 0, 0])

    def row(self, positions: SinusoidalPositions) -> Tensor:
        """Return what is added to the embeddings of this step, (1, d)."""
        return self._sines.index_select(0, self.place)

    def advance(self) -> None:
        """A step is done, on the device; :attr:`position` is counted where the step is run."""
        self.place += 1

    def reorder(self, parents: Tensor, sentences: Tensor | None = None) -> None:
        """Let each beam continue from another of its sentence; see :meth:`phmctl.models.state.DecoderState.reorder`."""
        rows = continued(parents, sentences, self.beams)
        if self.beams > 1:
            self._parents[: len(rows)] = rows
        else:
            self.past[:, :, :, : len(rows)] = self.past.index_select(3, rows)
        if sentences is not None:
            self.count = len(sentences)
            self.mask[: self.count] = self.mask[sentences]
            for layer in self.layers:
                layer.memory_keys[: self.count] = layer.memory_keys[sentences]
                layer.memory_values[: self.count] = layer.memory_values[sentences]


def _power(number: int) -> int:
    """Return the lowest power of two that is not below a number."""
    return 1 << (number - 1).bit_length()
