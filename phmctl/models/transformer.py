"""The encoder-decoder Transformer, real or PHM (Vaswani et al. 2017; Zhang et al. 2021, §4.2)."""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.algebra.modes import needs_plain_operations
from phmctl.data import PAD
from phmctl.nn.composition import BilinearComposition, HierarchicalComposition, LinearComposition
from phmctl.nn.embedding import NarrowEmbedding, PHMEmbedding
from phmctl.nn.layers import FeedForward, LinearBuilder, MultiHeadAttention, Residual, sinusoids
from phmctl.nn.linear import PHMLinear
from phmctl.nn.loss import vocabulary_loss
from phmctl.recipe.models import LinearSection, StackSection, TransformerSection

Device = torch.device | str | None

CAPACITY = 32  # initial capacity of the decoder's key-value cache, in positions


class Memory(NamedTuple):
    """The encoder's output: states (B, S, d), and a mask (B, 1, 1, S) that is true at real tokens."""

    states: Tensor
    mask: Tensor


class DecoderState:
    """The key-value cache of the decoder for B sentences with K beams each and at most `max_length` steps.

    `past` holds the keys and values of self-attention, (capacity, layers, 2, B·K, inner). Time is the first axis, so
    that the written positions are contiguous and a change of beams or sentences is a single copy. (Masking was measured
    and is slower than copying.) Two buffers alternate, because an allocation costs several times a copy. The capacity
    grows with the outputs. `memories` holds the keys and values of cross-attention, a pair of (B, heads, S, head width)
    for each layer. The beams of a sentence share them.
    """

    def __init__(self, memories: Sequence[tuple[Tensor, Tensor]], mask: Tensor, beams: int, max_length: int) -> None:
        self.memories = [(keys.contiguous(), values.contiguous()) for keys, values in memories]
        self.mask = mask
        self.beams = beams
        self.position = 0
        keys = self.memories[0][0]
        sentences, heads, _, head_width = keys.shape
        self._max_length = max_length
        self._inner = heads * head_width
        self._current = self._spare = keys.new_empty(0)  # the two buffers
        self.past = self._swap_buffers(min(max_length, CAPACITY), sentences * beams)

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Append a key and a value, (B·K, heads, 1, head width), and return all t of them, (B·K, heads, t, head width).

        All layers append at the current position. The caller advances it.
        """
        position = self.position
        rows, heads, _, head_width = key.shape
        if position == len(self.past):
            full = self.past
            capacity = min(2 * position, self._max_length)
            self.past = self._swap_buffers(max(capacity, position + 1), rows)
            self.past[:position] = full
        self.past[position, layer, 0] = key.flatten(1)  # (B·K, inner)
        self.past[position, layer, 1] = value.flatten(1)
        pairs = self.past[: position + 1, layer].view(position + 1, 2, rows, heads, head_width)
        keys, values = pairs.permute(1, 2, 3, 0, 4)  # (2, B·K, heads, t, head width)
        return keys, values

    def reorder(self, parents: Tensor, sentences: Tensor | None = None) -> None:
        """Replace the beams of each sentence by copies of the given parents.

        Args:
            parents: beam indices (B', K') in [0, K). K' is the new number of beams.
            sentences: indices (B',) of the sentences to keep, with `parents` for each of them. None keeps all.
        """
        indices = torch.arange(len(parents), device=parents.device) if sentences is None else sentences  # (B',)
        rows = (indices[:, None] * self.beams + parents).flatten()  # (B'·K',), indices into B·K
        past = self.past
        self.past = self._swap_buffers(len(past), len(rows))
        torch.index_select(past[: self.position], 3, rows, out=self.past[: self.position])
        self.beams = parents.shape[1]
        if sentences is not None:
            self.mask = self.mask[sentences]
            self.memories = [(keys[sentences], values[sentences]) for keys, values in self.memories]

    def _swap_buffers(self, capacity: int, rows: int) -> Tensor:
        """Return the spare buffer, enlarged if necessary, as an empty `past`. The current buffer becomes the spare."""
        shape = (capacity, len(self.memories), 2, rows, self._inner)
        size = math.prod(shape)
        if self._spare.numel() < size:
            self._spare = self._spare.new_empty(size)
        self._current, self._spare = self._spare, self._current
        return self._current[:size].view(shape)


def builder_of(section: LinearSection, device: Device = None) -> LinearBuilder:
    """Return the builder of a model's maps."""
    rules, bias, rank = section.rules, section.bias, section.rank
    return LinearBuilder(section.algebra, section.n, rules=rules, bias=bias, rank=rank, device=device)


def table(
    section: StackSection, builder: LinearBuilder, rows: int, *, hypercomplex: bool = False
) -> PHMEmbedding | NarrowEmbedding:
    """Build an embedding of `rows` token types."""
    if section.embedding_width is None:
        return builder.embedding(rows, section.width, hypercomplex=hypercomplex)
    narrow = builder.embedding(rows, section.embedding_width, hypercomplex=hypercomplex)
    return NarrowEmbedding(narrow, builder.map(section.embedding_width, section.width, bias=False))


def final_norm(section: StackSection, device: Device = None) -> nn.Module:
    return nn.LayerNorm(section.width, device=device) if section.final_norm else nn.Identity()


def _attention(section: StackSection, builder: LinearBuilder, *, cross: bool = False) -> MultiHeadAttention:
    builder = builder.sublayer()
    heads, inner = section.heads, section.upsize * section.width
    return MultiHeadAttention(
        builder,
        section.width,
        inner,
        heads,
        cross=cross,
        projections=section.projections,
        dropout=section.attention_dropout,
        output=_composition(section, builder, section.compose_heads, heads, inner // heads, inner, joined=True),
    )


def _feed_forward(section: StackSection, builder: LinearBuilder) -> FeedForward:
    inner = section.upsize * section.feed_forward
    return FeedForward(builder.sublayer(), section.width, inner, section.activation_dropout)


def _residual(section: StackSection, builder: LinearBuilder) -> Residual:
    return Residual(section.width, section.dropout, pre_norm=section.norm == "pre", device=builder.device)


def _composition(
    section: StackSection,
    builder: LinearBuilder,
    composition_type: str,
    parts: int,
    width: int,
    hidden: int,
    *,
    joined: bool,
) -> nn.Module | None:
    """Build the module that composes parts (..., width), in a list or joined in one tensor. None for ``none``."""
    if section.composition_maps != "algebra":
        builder = LinearBuilder("real", 1, bias=section.bias, device=builder.device)
    out, widths = section.width, [parts * width] if joined else [width] * parts
    if composition_type == "none":
        return None
    if composition_type == "hierarchical":
        return HierarchicalComposition(builder, parts, width, hidden, out, joined=joined)
    if composition_type == "linear":
        return LinearComposition(builder, widths, out)
    return BilinearComposition(builder, widths, out, section.pooling_rank, first_order=section.first_order)


class EncoderLayer(nn.Module):
    """Self-attention and feed-forward, each in a residual connection."""

    def __init__(self, section: StackSection, builder: LinearBuilder) -> None:
        super().__init__()
        self.attention = _attention(section, builder)
        self.feed_forward = _feed_forward(section, builder)
        self.attention_residual = _residual(section, builder)
        self.feed_forward_residual = _residual(section, builder)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Transform x (B, S, d). The mask (B, 1, 1, S) is true at positions that can be attended to."""
        x = self.attention_residual(x, lambda h: self.attention(h, mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class DecoderLayer(nn.Module):
    """Causal self-attention, cross-attention and feed-forward, each in a residual connection."""

    def __init__(self, section: StackSection, builder: LinearBuilder) -> None:
        super().__init__()
        self.attention = _attention(section, builder)
        self.cross_attention = _attention(section, builder, cross=True)
        self.feed_forward = _feed_forward(section, builder)
        self.attention_residual = _residual(section, builder)
        self.cross_residual = _residual(section, builder)
        self.feed_forward_residual = _residual(section, builder)

    def forward(self, x: Tensor, memory: Tensor, mask: Tensor | None) -> Tensor:
        """Transform x (B, T, d), with cross-attention to memory (B, S, d) under the mask (B, 1, 1, S)."""
        # Padding follows the real tokens, so the causal mask already hides it from them.
        x = self.attention_residual(x, lambda h: self.attention(h, causal=True))
        x = self.cross_residual(x, lambda h: self.cross_attention.forward_memory(h, memory, mask))
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]

    def step(self, x: Tensor, state: DecoderState, layer: int) -> Tensor:
        """Transform one position x (B, K, d) of K beams of B sentences, and append the keys and values to the state."""

        def attend_past(h: Tensor) -> Tensor:
            query, key, value = self.attention.project(h.flatten(0, 1).unsqueeze(1))  # (B·K, heads, 1, head width)
            keys, values = state.append(layer, key, value)  # (B·K, heads, t, head width)
            return self.attention.attend(query, keys, values).view(h.shape)

        def attend_memory(h: Tensor) -> Tensor:
            # The beams take the place of a sequence's positions, because they share the sentence's memory.
            keys, values = state.memories[layer]
            return self.cross_attention.attend(self.cross_attention.project_query(h), keys, values, state.mask)

        x = self.attention_residual(x, attend_past)
        x = self.cross_residual(x, attend_memory)
        return self.feed_forward_residual(x, self.feed_forward)  # type: ignore[no-any-return]


class Stack(nn.ModuleList):
    """A sequence of `count` layers, optionally with a composition of their outputs.

    The stack's output (B, T, d) is the last layer's output, or the composition of all layers' outputs, without the
    input (Li et al. 2020, eq. 5). Compositions act on each position separately, so decoding needs no state for them.
    The composition is a submodule but not an element of the list.
    """

    def __init__(
        self, section: StackSection, builder: LinearBuilder, count: int, layer: type[EncoderLayer | DecoderLayer]
    ) -> None:
        super().__init__(layer(section, builder) for _ in range(count))
        width, hidden, builder = section.width, section.upsize * section.feed_forward, builder.sublayer()
        self.composition = _composition(section, builder, section.compose_layers, count, width, hidden, joined=False)

    def __len__(self) -> int:
        return len(self._modules.keys() - {"composition"})

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        """Apply all layers to x (B, T, d). Each gets the same `context` (memory, mask)."""
        return self._apply_layers(x, lambda layer, index, h: layer(h, *context))

    def step(self, x: Tensor, state: DecoderState) -> Tensor:
        """Apply all layers to one position x (B, K, d) of K beams."""
        return self._apply_layers(x, lambda layer, index, h: layer.step(h, state, index))

    def _apply_layers(self, x: Tensor, apply: Callable[[Any, int, Tensor], Tensor]) -> Tensor:
        outputs = []
        for index, layer in enumerate(self):
            x = apply(layer, index, x)
            if self.composition is not None:
                outputs.append(x)
        return x if self.composition is None else self.composition(outputs)


def embed(embedding: nn.Module, ids: Tensor, dropout: float = 0.0) -> Tensor:
    """Return embeddings (B, T, d) of ids (B, T), scaled by √d (Vaswani et al. §3.4), with positions and dropout."""
    x = _with_positions(embedding(ids), 0, ids.shape[1])
    return F.dropout(x, dropout) if dropout else x


def _with_positions(x: Tensor, start: int, stop: int) -> Tensor:
    """Return embeddings (..., d) times √d, plus the sinusoids of their positions `start` to `stop` - 1."""
    width = x.shape[-1]
    if needs_plain_operations() or type(x) is not Tensor:  # a cached table would outlive a trace
        encodings = sinusoids(start, stop, width, x.device)
    else:  # a table of 256 rows, 512, …
        encodings = _position_table(1 << max((stop - 1).bit_length(), 8), width, x.device)[start:stop]
    return x * math.sqrt(width) + encodings.to(x.dtype)


@cache
@torch.inference_mode(False)  # autograd does not save inference tensors
def _position_table(rows: int, width: int, device: torch.device) -> Tensor:
    return sinusoids(0, rows, width, device)


class Transformer(nn.Module):
    """Encoder-decoder Transformer over token ids. Attention skips padding (id 0).

    The rows of a PHM table are rounded up to a multiple of n. Decoding never produces the added ids. A table that both
    sides share has the larger vocabulary. Without a generator, the target embedding's weight maps to the vocabulary.

    The parts are built in a fixed order, which decides their initial random numbers.

    Args:
        section: the recipe's ``model``.
        source: number of source token types.
        target: number of target token types.
        device: ``meta`` allocates no memory.

    Raises:
        DimensionError: n does not divide a dimension.
    """

    def __init__(self, section: TransformerSection, source: int, target: int, device: Device = None) -> None:
        super().__init__()
        builder, n = builder_of(section, device), section.n
        phm_tables, phm_generator = section.embeddings == "phm", section.generator == "phm"
        if section.share_embeddings:
            target = max(source, target)
        if phm_tables or phm_generator:
            target = -(-target // n) * n
        if phm_tables:
            source = -(-source // n) * n
        if section.share_embeddings:
            self.source_embedding = self.target_embedding = table(section, builder, target, hypercomplex=phm_tables)
        else:
            self.source_embedding = table(section, builder, source, hypercomplex=phm_tables)
            self.target_embedding = table(section, builder, target, hypercomplex=phm_tables)
        self.encoder = Stack(section, builder, section.encoder_layers, EncoderLayer)
        self.decoder = Stack(section, builder, section.decoder_layers, DecoderLayer)
        self.encoder_norm, self.decoder_norm = final_norm(section, device), final_norm(section, device)
        self.generator: PHMLinear | None = None
        if section.generator != "tied":
            maps = builder if phm_generator else LinearBuilder("real", 1, device=device)
            self.generator = maps.linear(section.width, target, bias=section.generator_bias)
        self.dropout = section.dropout

    def forward(
        self, source: Tensor, target: Tensor, labels: Tensor | None = None, smoothing: float = 0.0
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Return hidden states (B, T, d) for source ids (B, S) and decoder input ids (B, T), which begin with BOS.

        With `labels` (B, T), padded with PAD, return the two sums of :func:`phmctl.nn.loss.vocabulary_loss` instead.
        The loss is computed here so that wrappers such as ``DistributedDataParallel`` cover it.
        """
        hidden = self.decode(self.encode(source), target)  # (B, T, d)
        if labels is None:
            return hidden
        hidden, weight, bias = self.output(hidden)
        return vocabulary_loss(hidden, weight, bias, labels, smoothing=smoothing, ignore=PAD)

    def encode(self, source: Tensor) -> Memory:
        mask = (source != PAD)[:, None, None, :]  # (B, 1, 1, S)
        x = self._embed(self.source_embedding, source)
        return Memory(self.encoder_norm(self.encoder(x, mask)), mask)

    def decode(self, memory: Memory, target: Tensor) -> Tensor:
        x = self._embed(self.target_embedding, target)
        return self.decoder_norm(self.decoder(x, memory.states, memory.mask))  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Return logits (..., V) of hidden states (..., d)."""
        return F.linear(*self.output(hidden))

    def output(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the arguments of ``F.linear`` for logits: states (..., d), a weight (V, d), and a bias (V,) or None.

        If the table is tied and has only e columns (`NarrowEmbedding`), the states and the weight have width e.
        """
        if self.generator is not None:
            return hidden, self.generator.weight, self.generator.bias
        embedding = self.target_embedding
        if isinstance(embedding, NarrowEmbedding):
            return F.linear(hidden, embedding.map.weight.T), embedding.table.weight, None
        return hidden, embedding.weight, None

    def start(self, memory: Memory, beams: int, max_length: int) -> DecoderState:
        """Return the initial decoder state, for `beams` hypotheses per sentence and at most `max_length` steps."""
        memories = [layer.cross_attention.project_memory(memory.states) for layer in self.decoder]
        return DecoderState(memories, memory.mask, beams, max_length)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Return the next token's logits (B, K, V) after the last tokens (B, K), and advance the state."""
        x = _with_positions(self.target_embedding(tokens), state.position, state.position + 1)  # (B, K, d)
        x = self.decoder.step(x, state)
        state.position += 1
        return self.logits(self.decoder_norm(x))

    def _embed(self, embedding: nn.Module, ids: Tensor) -> Tensor:
        return embed(embedding, ids, self.dropout if self.training else 0.0)  # (B, T, d)
