"""What decoding keeps between steps: the encoder's memory and the keys and values of the past."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from phmctl.nn.positions import SinusoidalPositions

ROOM = 32  # positions that there is room for at first


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
        past_mask: (1, 1, 1, t), true where a position of the past may be seen; None if all may.
    """

    past_mask: Tensor | None = None

    def __init__(self, state: "DecoderState", layer: int, memory_keys: Tensor, memory_values: Tensor) -> None:
        self._state = state
        self._layer = layer
        self.memory_keys = memory_keys
        self.memory_values = memory_values

    def append(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add a position's key and value, (B·K, heads, 1, head width); return all, (B·K, heads, t, head width)."""
        heads = key.shape[1]
        position = self._state.position
        past = self._state.room()
        past[position, self._layer, 0] = key.flatten(1)  # (B·K, inner)
        past[position, self._layer, 1] = value.flatten(1)
        return by_heads(past[: position + 1, self._layer], heads)


def by_heads(past: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """View a layer's past (t, 2, B·K, inner) as keys and values, (B·K, heads, t, head width) each."""
    both = past.view(*past.shape[:-1], heads, -1)  # (t, 2, B·K, heads, head width)
    keys, values = both.permute(1, 2, 3, 0, 4)
    return keys, values


def continued(parents: Tensor, sentences: Tensor | None, beams: int) -> Tensor:
    """Return the rows (B'·K',) of B·K that live prefixes continue, see :meth:`DecoderState.reorder`."""
    first = torch.arange(len(parents), device=parents.device) if sentences is None else sentences  # (B',)
    return (first[:, None] * beams + parents).flatten()


class DecoderState:
    """The decoder's state for B sentences of K beams each.

    The past is one tensor with time outermost, (room, layers, 2, B·K, inner), so that what is written so far is one
    contiguous block, and reordering beams, dropping sentences or adding beams is one copy of it. (To leave it where it
    is and let each beam see its own of what all beams have written was measured too: the mask takes longer than the
    copy.) Two stretches of memory take turns in holding it: fresh memory costs several times a copy. There is room for
    as many positions as outputs want, not as they may want at most. The memory's keys and values are held once a
    sentence.

    Args:
        memories: each layer's keys and values of the memory, (B, heads, S, head width) each.
        mask: the memory's mask, (B, 1, 1, S).
        beams: K at the first step; :meth:`reorder` changes it.
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
        self._longest, self._room = max_length, min(max_length, ROOM)
        self._parts, self._inner = (len(memories), 2), heads * head_width
        self._current, self._spare = keys.new_empty(0), keys.new_empty(0)
        self.past, self._current = self._view(self._current, sentences * beams)
        self.layers = [LayerCache(self, i, k.contiguous(), v.contiguous()) for i, (k, v) in enumerate(memories)]

    @property
    def count(self) -> int:
        """How many sentences there are."""
        return len(self.layers[0].memory_keys)

    def row(self, positions: SinusoidalPositions) -> Tensor:
        """Return what is added to the embeddings of this step, (1, d)."""
        return positions(1, self.position)  # type: ignore[no-any-return]

    def advance(self) -> None:
        """A step is done."""
        self.position += 1

    def room(self) -> Tensor:
        """Return the past, with room for the position at hand."""
        if self.position == self._room:
            self._room = max(min(2 * self._room, self._longest), self.position + 1)
            written, self._spare = self.past, self._spare.new_empty(0)
            self.past, self._current = self._view(self._spare, written.shape[3])
            self.past[: self.position] = written
        return self.past

    def reorder(self, parents: Tensor, sentences: Tensor | None = None) -> None:
        """Let each beam continue from another of its sentence.

        Args:
            parents: beam indices (B', K') in [0, K). K' is the number of beams from now on.
            sentences: indices (B',) of the sentences that stay, with `parents` for each of them; None keeps all.
        """
        rows = continued(parents, sentences, self.beams)
        target, storage = self._view(self._spare, len(rows))
        torch.index_select(self.past[: self.position], 3, rows, out=target[: self.position])
        self.past, self._current, self._spare = target, storage, self._current
        self.beams = parents.shape[1]
        if sentences is not None:
            self._select_memory(sentences)

    def select(self, sentences: Tensor) -> None:
        """Keep some sentences, with all their beams: indices (B',)."""
        parents = torch.arange(self.beams, device=sentences.device).expand(len(sentences), -1)  # (B', K)
        self.reorder(parents, sentences)

    def _view(self, storage: Tensor, rows: int) -> tuple[Tensor, Tensor]:
        """Return storage as a past of so many rows, and the storage: another one if it is too small."""
        shape = (self._room, *self._parts, rows, self._inner)
        if storage.numel() < math.prod(shape):
            storage = storage.new_empty(math.prod(shape))
        return storage[: math.prod(shape)].view(shape), storage

    def _select_memory(self, sentences: Tensor) -> None:
        self.mask = None if self.mask is None else self.mask[sentences]
        for layer in self.layers:
            layer.memory_keys = layer.memory_keys[sentences]
            layer.memory_values = layer.memory_values[sentences]
