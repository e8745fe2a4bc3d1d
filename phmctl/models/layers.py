"""The encoder's and the decoder's layer, and what stands below the first."""

import math
from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.models.state import LayerCache
from phmctl.nn.attention import MultiHeadAttention
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.feedforward import FeedForward
from phmctl.nn.positions import SinusoidalPositions
from phmctl.nn.residual import Residual


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each in a residual connection.

    Args:
        attention: over the sequence itself.
        feed_forward: behind it.
        residual: makes a residual connection; called once for each of the two.
    """

    def __init__(
        self, attention: MultiHeadAttention, feed_forward: FeedForward, residual: Callable[[], Residual]
    ) -> None:
        super().__init__()
        self.attention = attention
        self.feed_forward = feed_forward
        self.attention_residual = residual()
        self.feed_forward_residual = residual()

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map states (B, S, d) to (B, S, d); mask (B, 1, 1, S) is true where a position may be seen."""
        x = self.attention_residual(x, lambda h: self.attention(h, mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, each in a residual connection.

    Args:
        attention: over the sequence itself.
        cross_attention: over the memory.
        feed_forward: behind both.
        residual: makes a residual connection; called once for each of the three.
    """

    def __init__(
        self,
        attention: MultiHeadAttention,
        cross_attention: MultiHeadAttention,
        feed_forward: FeedForward,
        residual: Callable[[], Residual],
    ) -> None:
        super().__init__()
        self.attention = attention
        self.cross_attention = cross_attention
        self.feed_forward = feed_forward
        self.attention_residual = residual()
        self.cross_residual = residual()
        self.feed_forward_residual = residual()

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Map states (B, T, d) to (B, T, d), given memory (B, S, d) and its mask (B, 1, 1, S)."""
        # Padding stands behind the real tokens, which see only what is before them: the causal mask is enough.
        x = self.attention_residual(x, lambda h: self.attention(h, causal=True))
        x = self.cross_residual(x, lambda h: self.cross_attention.forward_memory(h, memory, mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]

    def step(self, x: Tensor, cache: LayerCache, mask: Tensor | None) -> Tensor:
        """Advance one position: x (B, K, d), the K beams of B sentences, to (B, K, d)."""
        x = self.attention_residual(x, lambda h: self._attend_past(h, cache))
        attention, keys, values = self.cross_attention, cache.memory_keys, cache.memory_values
        # In a decoding step the beams of a sentence stand where a sequence's positions do: they share its memory.
        x = self.cross_residual(x, lambda h: attention.attend(attention.project_query(h), keys, values, mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]

    def _attend_past(self, h: Tensor, cache: LayerCache) -> Tensor:
        sentences, beams, _ = h.shape
        query, key, value = self.attention.project(h.flatten(0, 1).unsqueeze(1))  # (B·K, heads, 1, head width)
        keys, values = cache.append(key, value)  # (B·K, heads, t + 1, head width)
        return self.attention.attend(query, keys, values, cache.past_mask).view(sentences, beams, -1)


def embed(embedding: PHMEmbedding, positions: SinusoidalPositions, ids: Tensor, dropout: float = 0.0) -> Tensor:
    """Embed ids (B, T), scaled by √d (Vaswani et al. §3.4), with positions added and dropout: (B, T, d)."""
    x = embedding(ids) * math.sqrt(embedding.embedding_dim) + positions(ids.shape[1])  # (B, T, d)
    return F.dropout(x, dropout) if dropout else x
