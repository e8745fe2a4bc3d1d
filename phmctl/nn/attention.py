"""Multi-head attention whose projections are PHM maps (Zhang et al. 2021, §4.2)."""

from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.nn.build import LinearBuilder

Projections = Literal["fused", "separate", "packed"]


class MultiHeadAttention(nn.Module):
    """Attention of queries from one sequence to keys and values of the same or another.

    Projections:
        ``fused``: self-attention has one map with a three-way split; cross-attention has Q and a fused KV map.
        ``separate``: Q, K and V are one map each.
        ``packed``: one in-projection of 3·inner rows in cross-attention too; its first rows make queries, the others
        keys and values (the arrangement of ``nn.MultiheadAttention``, used by CENG501).

    Args:
        builder: makes the maps.
        width: residual width d.
        inner: width of queries, keys and values; d, or 2d in the † rows of Table 2.
        heads: number of heads; divides `inner`.
        cross: whether keys and values come from another sequence.
        projections: see above.
        dropout: on the attention weights.
        output: what makes (..., width) of the heads side by side, (..., inner); None is one linear map (eq.
            4 of Li et al. 2020).
    """

    def __init__(
        self,
        builder: LinearBuilder,
        width: int,
        inner: int,
        heads: int,
        *,
        cross: bool = False,
        projections: Projections = "fused",
        dropout: float = 0.0,
        output: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.inner, self.heads, self.dropout = inner, heads, dropout
        self.cross, self.projections = cross, projections
        if projections == "separate":
            self.query = builder.map(width, inner)
            self.key = builder.map(width, inner)
            self.value = builder.map(width, inner)
        elif projections == "fused" and cross:
            self.query = builder.map(width, inner)
            self.key_value = builder.map(width, 2 * inner, splits=2)
        else:
            self.query_key_value = builder.map(width, 3 * inner, splits=3)
        self.output = builder.map(inner, width) if output is None else output

    def forward(self, x: Tensor, mask: Tensor | None = None, *, causal: bool = False) -> Tensor:
        """Self-attention: x (B, T, d), mask (B, 1, 1, T) true where a key may be seen, to (B, T, d)."""
        query, key, value = self.project(x)
        return self.attend(query, key, value, mask, causal=causal)

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Map x (B, T, d) to queries, keys and values, each (B, heads, T, head width)."""
        if self.projections == "separate":
            query, key, value = self.query(x), self.key(x), self.value(x)
        else:
            query, key, value = self.query_key_value(x).chunk(3, dim=-1)  # (B, T, inner) each
        return self.split_heads(query), self.split_heads(key), self.split_heads(value)

    def forward_memory(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Cross-attention: x (B, T, d), memory (B, S, d), mask (B, 1, 1, S) true where it may be seen, to (B, T, d)."""
        if self.projections == "packed":
            weight = self.query_key_value.weight  # H once for both sides
            query = self._packed_query(x, weight)
            key, value = self._packed_memory(memory, weight)
        else:
            query = self.project_query(x)
            key, value = self.project_memory(memory)
        return self.attend(query, key, value, mask)

    def project_query(self, x: Tensor) -> Tensor:
        """Cross-attention: map x (B, T, d) to queries (B, heads, T, head width)."""
        if self.projections == "packed":
            return self._packed_query(x, self.query_key_value.weight)
        return self.split_heads(self.query(x))

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Cross-attention: map memory (B, S, d) to keys and values, each (B, heads, S, head width)."""
        if self.projections == "separate":
            return self.split_heads(self.key(memory)), self.split_heads(self.value(memory))
        if self.projections == "packed":
            return self._packed_memory(memory, self.query_key_value.weight)
        key, value = self.key_value(memory).chunk(2, dim=-1)  # (B, S, inner) each
        return self.split_heads(key), self.split_heads(value)

    def _packed_query(self, x: Tensor, weight: Tensor) -> Tensor:
        bias = self.query_key_value.bias
        return self.split_heads(F.linear(x, weight[: self.inner], None if bias is None else bias[: self.inner]))

    def _packed_memory(self, memory: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        bias = self.query_key_value.bias
        both = F.linear(memory, weight[self.inner :], None if bias is None else bias[self.inner :])  # (B, S, 2·inner)
        key, value = both.chunk(2, dim=-1)
        return self.split_heads(key), self.split_heads(value)

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, causal: bool = False
    ) -> Tensor:
        """Scaled dot-product attention and what stands behind it: heads (B, heads, T, head width) to (B, T, d)."""
        dropout = self.dropout if self.training else 0.0
        mixed = _attention(query, key, value, mask, dropout, causal=causal)  # (B, heads, T, head width)
        return self.output(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]

    def split_heads(self, x: Tensor) -> Tensor:
        """View (B, T, inner) as (B, heads, T, head width)."""
        return x.view(*x.shape[:-1], self.heads, -1).transpose(1, 2)


def _attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, dropout: float, *, causal: bool
) -> Tensor:
    """Scaled dot-product attention of heads (B, heads, T, head width)."""
    by_products = query.device.type == "cpu" and query.dtype == torch.bfloat16
    if causal and (by_products or mask is not None):
        shape = query.shape[-2], key.shape[-2]
        below = torch.ones(shape, dtype=torch.bool, device=query.device).tril()  # (T, S)
        mask, causal = below if mask is None else mask & below, False
    if not by_products:
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal)
    # On CPUs torch's fused bfloat16 kernel takes three to eight times as long as two batched products.
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # (B, heads, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, float("-inf"))
    shares = scores.softmax(-1)
    return (F.dropout(shares, dropout) if dropout else shares) @ value
