"""What decoding keeps between steps: the encoder's memory and the keys and values of the past."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Memory:
    """The encoder's output.

    Attributes:
        states: (B, S, d).
        mask: (B, 1, 1, S), true where a position is a real token; None if all are.
    """

    states: Tensor
    mask: Tensor | None

    def select(self, sentences: Tensor) -> "Memory":
        """Keep some sentences: indices (B',)."""
        mask = None if self.mask is None else self.mask[sentences]
        return Memory(self.states[sentences], mask)


class LayerCache:
    """One decoder layer's view of the state: its part of the past and its keys and values of the memory.

    Attributes:
        memory_keys: (B, heads, S, head width).
        memory_values: the same shape.
    """

    def __init__(self, state: "DecoderState", layer: int, memory_keys: Tensor, memory_values: Tensor) -> None:
        self._state = state
        self._layer = layer
        self.memory_keys = memory_keys
        self.memory_values = memory_values

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add a position's key and value, (B·K, heads, 1, head width); return all, (B·K, heads, t, head width)."""
        heads = key.shape[1]
        position = self._state.position
        past = self._state.past
        past[position, self._layer, 0] = key.flatten(1)  # (B·K, inner)
        past[position, self._layer, 1] = value.flatten(1)
        written = past[: position + 1, self._layer]  # (t, 2, B·K, inner)
        both = written.view(*written.shape[:-1], heads, -1)  # (t, 2, B·K, heads, head width)
        keys, values = both.permute(1, 2, 3, 0, 4)
        return keys, values


class DecoderState:
    """The decoder's state for B sentences of K beams each.

    The past is one tensor with time outermost, (max length, layers, 2, B·K, inner), so that what is written so far is
    one contiguous block and reordering the beams is one copy of it. The memory's keys and values are held once a
    sentence.

    Args:
        memories: each layer's keys and values of the memory, (B, heads, S, head width) each.
        mask: the memory's mask, (B, 1, 1, S).
        beams: K.
        max_length: the most steps that will be taken.
    """

    def __init__(
        self, memories: Sequence[tuple[Tensor, Tensor]], mask: Tensor | None, beams: int, max_length: int
    ) -> None:
        keys = memories[0][0]
        sentences, heads, _, head_width = keys.shape
        self.beams = beams
        self.mask = mask
        self.position = 0
        shape = (max_length, len(memories), 2, sentences * beams, heads * head_width)
        self.past = torch.empty(shape, dtype=keys.dtype, device=keys.device)
        self._spare = torch.empty_like(self.past) if beams > 1 else self.past
        self.layers = [LayerCache(self, i, k.contiguous(), v.contiguous()) for i, (k, v) in enumerate(memories)]

    def reorder(self, parents: Tensor) -> None:
        """Let each beam continue from another of its sentence: parents (B, K) holds beam indices in [0, K)."""
        if self.beams == 1:
            return
        first = torch.arange(parents.shape[0], device=parents.device)[:, None] * self.beams  # (B, 1)
        rows = (first + parents).flatten()  # (B·K,)
        written, spare = self.past[: self.position], self._spare[: self.position]
        torch.index_select(written, 3, rows, out=spare)
        self.past, self._spare = self._spare, self.past

    def select(self, sentences: Tensor) -> None:
        """Keep some sentences, with all their beams: indices (B',)."""
        offsets = torch.arange(self.beams, device=sentences.device)  # (K,)
        rows = (sentences[:, None] * self.beams + offsets).flatten()  # (B'·K,)
        self.past = self.past.index_select(3, rows)
        self._spare = torch.empty_like(self.past) if self.beams > 1 else self.past
        self.mask = None if self.mask is None else self.mask[sentences]
        for layer in self.layers:
            layer.memory_keys = layer.memory_keys[sentences]
            layer.memory_values = layer.memory_values[sentences]
