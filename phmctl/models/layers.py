"""The encoder's and the decoder's layer, and what stands below the first."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.models.state import LayerCache
from phmctl.nn.attention import MultiHeadAttention
from phmctl.nn.build import LinearBuilder
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.feedforward import FeedForward
from phmctl.nn.positions import SinusoidalPositions
from phmctl.nn.residual import Residual
from phmctl.recipe.schema import StackSection


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each in a residual connection."""

    def __init__(
        self, settings: StackSection, builder: LinearBuilder, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.attention = _attention(settings, builder, cross=False)
        self.feed_forward = _feed_forward(settings, builder)
        self.attention_residual = _residual(settings, device)
        self.feed_forward_residual = _residual(settings, device)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Map states (B, S, d) to (B, S, d); mask (B, 1, 1, S) is true where a position may be seen."""
        x = self.attention_residual(x, lambda h: self.attention(h, mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, each in a residual connection."""

    def __init__(
        self, settings: StackSection, builder: LinearBuilder, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.attention = _attention(settings, builder, cross=False)
        self.cross_attention = _attention(settings, builder, cross=True)
        self.feed_forward = _feed_forward(settings, builder)
        self.attention_residual = _residual(settings, device)
        self.cross_residual = _residual(settings, device)
        self.feed_forward_residual = _residual(settings, device)

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
        return self.attention.attend(query, keys, values).view(sentences, beams, -1)


def embed(embedding: PHMEmbedding, positions: SinusoidalPositions, ids: Tensor, dropout: float = 0.0) -> Tensor:
    """Embed ids (B, T), scaled by √d (Vaswani et al. §3.4), with positions added and dropout: (B, T, d)."""
    x = embedding(ids) * math.sqrt(embedding.embedding_dim) + positions(ids.shape[1])  # (B, T, d)
    return F.dropout(x, dropout, dropout > 0)


def _attention(settings: StackSection, builder: LinearBuilder, *, cross: bool) -> MultiHeadAttention:
    return MultiHeadAttention(
        builder.sublayer(),
        settings.width,
        settings.upsize * settings.width,
        settings.heads,
        cross=cross,
        projections=settings.projections,
        dropout=settings.attention_dropout,
    )


def _feed_forward(settings: StackSection, builder: LinearBuilder) -> FeedForward:
    inner = settings.upsize * settings.feed_forward
    return FeedForward(builder.sublayer(), settings.width, inner, settings.activation_dropout)


def _residual(settings: StackSection, device: torch.device | str | None) -> Residual:
    return Residual(settings.width, settings.dropout, pre_norm=settings.norm == "pre", device=device)
