"""Parts of Transformers and classifiers: linear maps, attention, feed-forward, residuals, positions, pooling."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.algebra.dimension import LEARNED, LOW_RANK
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import LowRankLinear, PHMLinear

Projections = Literal["fused", "separate", "packed"]
RuleSharing = Literal["separate", "sublayer", "model"]


@dataclass(eq=False)
class LinearBuilder:
    """Builds the linear maps of one model.

    Args:
        algebra: ``real``, ``complex``, ``quaternion``, ``octonion``, ``sedenion``, ``phm``, or to compare
            ``low-rank``.
        n: the PHM hyperparameter, implied by a fixed algebra.
        rules: scope of a learned rule: each map has one (``separate``), the maps of a sublayer share one, or all
            maps of the model.
        bias: whether the maps have biases.
        rank: R of a learned rule that is held as factors, or the rank of ``low-rank`` maps.
        device: device of the parameters. ``meta`` allocates nothing.
    """

    algebra: str
    n: int
    _: KW_ONLY
    rules: RuleSharing = "separate"
    bias: bool = True
    rank: int | None = None
    device: torch.device | str | None = None
    _first: PHMLinear | None = field(default=None, init=False)  # the map whose rule the later maps share

    def sublayer(self) -> "LinearBuilder":
        """Return the builder for the maps of one sublayer: a copy if each sublayer has a rule, else this builder."""
        return replace(self) if self.rules == "sublayer" else self

    def map(
        self, in_features: int, out_features: int, *, splits: int = 1, bias: bool | None = None
    ) -> PHMLinear | LowRankLinear:
        """Build one map of a Transformer, which may have low rank. See :meth:`linear`."""
        if self.algebra != LOW_RANK:
            return self.linear(in_features, out_features, splits=splits, bias=bias)
        return LowRankLinear(
            in_features,
            out_features,
            rank=cast("int", self.rank),
            bias=self.bias if bias is None else bias,
            splits=splits,
            device=self.device,
        )

    def linear(self, in_features: int, out_features: int, *, splits: int = 1, bias: bool | None = None) -> PHMLinear:
        """Build one map that stacks `splits` maps (fused QKV: 3), which decide the fan-out of the initialisation."""
        learned = self.algebra == LEARNED and self.n != 1
        layer = PHMLinear(
            in_features,
            out_features,
            n=self.n,
            bias=self.bias if bias is None else bias,
            algebra=self.algebra,
            initialization="xavier_uniform",
            splits=splits,
            rank=self.rank if learned else None,
            device=self.device,
        )
        if learned and self.rules != "separate":
            if self._first is None:
                self._first = layer
            else:
                layer.share_rule(self._first)
        return layer

    def embedding(
        self, vocabulary: int, width: int, *, hypercomplex: bool, initialization: str = "embedding"
    ) -> PHMEmbedding:
        """Build an embedding table (vocabulary, width), dense or with this builder's algebra (PHM+).

        The default initialization, N(0, 1/d), gives a Transformer states of unit variance after the factor √d.
        """
        algebra, n = (self.algebra, self.n) if hypercomplex else ("real", 1)
        return PHMEmbedding(vocabulary, width, n=n, algebra=algebra, initialization=initialization, device=self.device)


class MultiHeadAttention(nn.Module):
    """Attention from one sequence to the same or another sequence (Zhang et al. 2021, §4.2).

    Projections:
        ``fused``: self-attention has one map with a three-way split. Cross-attention has Q and a fused KV map.
        ``separate``: Q, K and V are one map each.
        ``packed``: one in-projection of 3·inner rows also in cross-attention. The first rows make queries, the others
        keys and values (as in ``nn.MultiheadAttention``, used by CENG501).

    Args:
        width: residual width d.
        inner: width of queries, keys and values: d, or 2d in the † rows of Table 2.
        heads: number of heads, which divides `inner`.
        cross: whether keys and values come from another sequence.
        dropout: dropout of the attention weights.
        output: module that maps the concatenated heads (..., inner) to (..., width). None is one linear map (eq. 4 of
            Li et al. 2020).
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
        self.projections = projections
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
        """Self-attention of x (B, T, d), with a mask (B, 1, 1, T) that is true at visible keys, to (B, T, d)."""
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
        """Cross-attention of x (B, T, d) to memory (B, S, d), with mask (B, 1, 1, S), to (B, T, d)."""
        weight = self.query_key_value.weight if self.projections == "packed" else None  # H once for both sides
        query = self.project_query(x, weight)
        key, value = self.project_memory(memory, weight)
        return self.attend(query, key, value, mask)

    def project_query(self, x: Tensor, weight: Tensor | None = None) -> Tensor:
        """Map x (B, T, d) to queries of cross-attention (B, heads, T, head width). `weight` is a packed H, if built."""
        if self.projections == "packed":
            return self.split_heads(self._packed(x, slice(None, self.inner), weight))
        return self.split_heads(self.query(x))

    def project_memory(self, memory: Tensor, weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Map memory (B, S, d) to keys and values of cross-attention, each (B, heads, S, head width)."""
        if self.projections == "separate":
            return self.split_heads(self.key(memory)), self.split_heads(self.value(memory))
        if self.projections == "packed":
            key_value = self._packed(memory, slice(self.inner, None), weight)
        else:
            key_value = self.key_value(memory)
        key, value = key_value.chunk(2, dim=-1)  # (B, S, inner) each
        return self.split_heads(key), self.split_heads(value)

    def _packed(self, x: Tensor, rows: slice, weight: Tensor | None) -> Tensor:
        linear = self.query_key_value
        weight = linear.weight if weight is None else weight
        return F.linear(x, weight[rows], None if linear.bias is None else linear.bias[rows])

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, *, causal: bool = False
    ) -> Tensor:
        """Apply attention and the output map to heads (B, heads, T, head width), to (B, T, d)."""
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
    # On CPUs torch's fused bfloat16 kernel takes three to eight times as long as two batched products.
    by_products = query.device.type == "cpu" and query.dtype == torch.bfloat16
    if causal and (by_products or mask is not None):
        shape = query.shape[-2], key.shape[-2]
        causal_mask = torch.ones(shape, dtype=torch.bool, device=query.device).tril()  # (T, S)
        mask = causal_mask if mask is None else mask & causal_mask
        causal = False
    if not by_products:
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, is_causal=causal)
    scores = (query * query.shape[-1] ** -0.5) @ key.transpose(-1, -2)  # (B, heads, T, S)
    if mask is not None:
        scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)  # no NaN without a key
    weights = scores.softmax(-1)
    return (F.dropout(weights, dropout) if dropout else weights) @ value


class FeedForward(nn.Module):
    """``Y = PHM(ReLU(PHM(X)))`` at each position, with dropout of the hidden activations (Zhang et al. 2021, §4.2)."""

    def __init__(self, builder: LinearBuilder, width: int, inner: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.expand = builder.map(width, inner)
        self.contract = builder.map(inner, width)
        self.dropout = dropout

    def forward(self, x: Tensor) -> Tensor:
        """Map (..., d) to (..., d)."""
        hidden = self.expand(x).relu()  # (..., inner)
        return self.contract(F.dropout(hidden, self.dropout, self.training))  # type: ignore[no-any-return]


class Residual(nn.Module):
    """``x + f(norm(x))`` (pre) or ``norm(x + f(x))`` (post) for a sublayer f, with dropout of f's output."""

    def __init__(self, width: int, dropout: float, *, pre_norm: bool, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, device=device)
        self.dropout = dropout
        self.pre_norm = pre_norm

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `sublayer`, which maps (B, T, d) to (B, T, d), to x (B, T, d)."""
        branch = sublayer(self.norm(x) if self.pre_norm else x)
        x = x + F.dropout(branch, self.dropout, self.training)
        return x if self.pre_norm else self.norm(x)


def sinusoids(start: int, stop: int, width: int, device: torch.device | str | None = None) -> Tensor:
    """Return the encodings of positions `start` to `stop` - 1, (stop - start, width) float32.

    The first half of the columns are sines, the second half cosines (as in Tensor2Tensor), instead of alternating as in
    Vaswani et al. (2017, §3.5): a fixed permutation of the features.
    """
    half = width // 2
    rates = torch.exp(
        torch.arange(half, device=device, dtype=torch.float32) * (-math.log(10_000.0) / max(half - 1, 1))
    )  # (half,)
    angles = torch.arange(start, stop, device=device)[:, None] * rates  # (stop - start, half)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


def max_pool(states: Tensor, mask: Tensor) -> Tensor:
    """Return each feature's largest value over the tokens, (B, T, d) -> (B, d). `mask` (B, T) is true at tokens.

    As in the other poolings, padding is never read, not even NaN, and a sequence without tokens gives zeros. Steps that
    share the largest value share the gradient.
    """
    largest = states.masked_fill(~mask[..., None], -torch.inf).amax(1)  # (B, d)
    return largest.masked_fill(~mask.any(1, keepdim=True), 0.0)


def mean_pool(states: Tensor, mask: Tensor) -> Tensor:
    """Return each feature's mean over the tokens, (B, T, d) -> (B, d). See :func:`max_pool`."""
    total = states.masked_fill(~mask[..., None], 0.0).sum(1)  # (B, d)
    return total / mask.sum(1, keepdim=True).clamp(min=1)


def last_pool(states: Tensor, mask: Tensor) -> Tensor:
    """Return the state at each sequence's last token, (B, T, d) -> (B, d). See :func:`max_pool`."""
    steps = torch.arange(mask.shape[1], device=mask.device)  # (T,)
    last = (mask * steps).amax(1)  # (B,)
    rows = torch.arange(len(mask), device=mask.device)  # (B,)
    return states[rows, last].masked_fill(~mask.any(1, keepdim=True), 0.0)  # (B, d)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"max": max_pool, "mean": mean_pool, "last": last_pool}
