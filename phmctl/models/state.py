"""What decoding keeps between steps: the encoder's memory and the keys and values of the past."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

CAPACITY = 32  # positions that the past has memory for at first


class Memory(NamedTuple):
    """The encoder's output: states (B, S, d), and a mask (B, 1, 1, S) that is true where a position is a real token."""

    states: Tensor
    mask: Tensor

    def select(self, sentences: Tensor) -> "Memory":
        """Keep some sentences: indices (B',)."""
        return Memory(self.states[sentences], self.mask[sentences])


class DecoderState:
    """The decoder's state for B sentences of K beams each, at most `max_length` steps.

    The past is one tensor with time outermost, (capacity, layers, 2, B·K, inner), so that what is written so far is one
    contiguous block, and reordering beams, dropping sentences or adding beams is one copy of it. (To leave it where it
    is and let each beam see its own of what all beams have written was measured too: the mask takes longer than the
    copy.) Two stretches of memory hold it in turns: fresh memory costs several times a copy. There is memory for
    as many positions as outputs want, not as they may want at most. The memory's keys and values, a pair a layer of
    (B, heads, S, head width) each, are held once a sentence.
    """

    def __init__(self, memories: Sequence[tuple[Tensor, Tensor]], mask: Tensor, beams: int, max_length: int) -> None:
        self.memories = [(keys.contiguous(), values.contiguous()) for keys, values in memories]
        self.mask, self.beams, self.position = mask, beams, 0
        keys = self.memories[0][0]
        sentences, heads, _, head_width = keys.shape
        self._longest, self._inner = max_length, heads * head_width
        self._current = self._spare = keys.new_empty(0)
        self.past = self._other(min(max_length, CAPACITY), sentences * beams)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add a position's key and value, (B·K, heads, 1, head width); return all, (B·K, heads, t, head width)."""
        position, (rows, heads, _, head_width) = self.position, key.shape
        if position == len(self.past):
            written = self.past
            self.past = self._other(max(min(2 * position, self._longest), position + 1), rows)
            self.past[:position] = written
        self.past[position, layer, 0] = key.flatten(1)  # (B·K, inner)
        self.past[position, layer, 1] = value.flatten(1)
        both = self.past[: position + 1, layer].view(position + 1, 2, rows, heads, head_width)
        keys, values = both.permute(1, 2, 3, 0, 4)
        return keys, values

    def reorder(self, parents: Tensor, sentences: Tensor | None = None) -> None:
        """Let each beam continue from another of its sentence.

        Args:
            parents: beam indices (B', K') in [0, K). K' is the number of beams from now on.
            sentences: indices (B',) of the sentences that stay, with `parents` for each of them; None keeps all.
        """
        first = torch.arange(len(parents), device=parents.device) if sentences is None else sentences  # (B',)
        rows, before = (first[:, None] * self.beams + parents).flatten(), self.past  # (B'·K',) of B·K
        self.past = self._other(len(before), len(rows))
        torch.index_select(before[: self.position], 3, rows, out=self.past[: self.position])
        self.beams = parents.shape[1]
        if sentences is not None:
            self.mask = self.mask[sentences]
            self.memories = [(keys[sentences], values[sentences]) for keys, values in self.memories]

    def _other(self, capacity: int, rows: int) -> Tensor:
        """Return the stretch of memory that does not hold the past as a past of so many positions and rows."""
        shape = (capacity, len(self.memories), 2, rows, self._inner)
        if self._spare.numel() < math.prod(shape):
            self._spare = self._spare.new_empty(math.prod(shape))
        self._current, self._spare = self._spare, self._current
        return self._current[: math.prod(shape)].view(shape)
