"""The encoder's and the decoder's layers, and the one place where states go through them, in training and decoding."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.models.state import DecoderState
from phmctl.nn.layers import FeedForward, MultiHeadAttention, Residual, SinusoidalPositions


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each in a residual connection that `residual` makes."""

    def __init__(
        self, attention: MultiHeadAttention, feed_forward: FeedForward, residual: Callable[[], Residual]
    ) -> None:
        super().__init__()
        self.attention, self.feed_forward = attention, feed_forward
        self.attention_residual, self.feed_forward_residual = residual(), residual()

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map states (B, S, d) to (B, S, d); mask (B, 1, 1, S) is true where a position may be seen."""
        x = self.attention_residual(x, lambda h: self.attention(h, mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, each in a residual connection that `residual` makes."""

    def __init__(
        self,
        attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        self.attention, self.cross_attention, self.feed_forward = attention, cross_attention, feed_forward
        self.attention_residual, self.cross_residual, self.feed_forward_residual = residual(), residual(), residual()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Map states (B, T, d) to (B, T, d), given memory (B, S, d) and its mask (B, 1, 1, S)."""
        # Padding stands behind the real tokens, which see only what is before them: the causal mask is enough.
        x = self.attention_residual(x, lambda h: self.attention(h, causal=True))
        x = self.cross_residual(x, lambda h: self.cross_attention.forward_memory(h, memory, mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]

    def step(self, x: Tensor, state: DecoderState, layer: int) -> Tensor:
        """Advance one position: x (B, K, d), the K beams of B sentences, to (B, K, d)."""
        own, cross, (memory_keys, memory_values) = self.attention, self.cross_attention, state.memories[layer]

        def attend_past(h: Tensor) -> Tensor:
            query, key, value = own.project(h.flatten(0, 1).unsqueeze(1))  # (B·K, heads, 1, head width)
            keys, values = state.append(layer, key, value)  # (B·K, heads, t + 1, head width)
            return own.attend(query, keys, values).view(h.shape)

        def attend_memory(h: Tensor) -> Tensor:
            # The beams of a sentence stand where a sequence's positions do: they share its memory.
            return cross.attend(cross.project_query(h), memory_keys, memory_values, state.mask)

        x = self.cross_residual(self.attention_residual(x, attend_past), attend_memory)
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class Stack(nn.Module):
    """Layers one after another, indexed, counted, iterated and named as a ``nn.ModuleList`` of them.

    A composition makes the stack's output (B, T, d) of the list of all layers' outputs, not of the input (Li et al.
    2020, eq. 5); without one it is the top layer's. It looks at one position at a time, so that a decoding step
    composes what the step computed and keeps nothing for the next.
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
        """Pass states (B, T, d) through all layers, each with the same `context`: masks, a memory."""
        return self._through(x, lambda index, states: self[index](states, *context))

    def step(self, x: Tensor, state: DecoderState) -> Tensor:
        """Pass one position of K beams, (B, K, d), through all layers, each with its own past."""
        return self._through(x, lambda index, states: self[index].step(states, state, index))

    def _through(self, x: Tensor, layer: Callable[[int, Tensor], Tensor]) -> Tensor:
        parts = []
        for index in range(self._count):
            x = layer(index, x)
            if self.composition is not None:
                parts.append(x)
        return x if self.composition is None else self.composition(parts)


def embed(embedding: nn.Module, positions: SinusoidalPositions, ids: Tensor, dropout: float = 0.0) -> Tensor:
    """Embed ids (B, T), scaled by √d (Vaswani et al. §3.4), with positions added and dropout: (B, T, d)."""
    x = embedding(ids)  # (B, T, d)
    x = x * math.sqrt(x.shape[-1]) + positions(ids.shape[1])
    return F.dropout(x, dropout) if dropout else x
