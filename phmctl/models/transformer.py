"""The encoder-decoder Transformer, real or PHM (Vaswani et al. 2017; Zhang et al. 2021, §4.2)."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.data.special import PAD
from phmctl.nn.embedding import NarrowEmbedding, PHMEmbedding
from phmctl.nn.layers import FeedForward, MultiHeadAttention, Residual, SinusoidalPositions
from phmctl.nn.linear import PHMLinear
from phmctl.nn.loss import vocabulary_loss

CAPACITY = 32  # positions that the past has memory for at first


class Memory(NamedTuple):
    """The encoder's output: states (B, S, d), and a mask (B, 1, 1, S) that is true where a position is a real token."""

    states: Tensor
    mask: Tensor


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


class Stack(nn.ModuleList):
    """Layers one after another, and what composes them, which the list does not count.

    A composition makes the stack's output (B, T, d) of the list of all layers' outputs, not of the input (Li et al.
    2020, eq. 5); without one it is the top layer's. It looks at one position at a time, so that a decoding step
    composes what the step computed and keeps nothing for the next.
    """

    def __init__(self, layers: Iterable[nn.Module], composition: nn.Module | None = None) -> None:
        super().__init__(layers)
        self.composition = composition

    def __len__(self) -> int:
        return len(self._modules) - ("composition" in self._modules)

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def forward(self, x: Tensor, *context: Tensor | None) -> Tensor:
        """Pass states (B, T, d) through all layers, each with the same `context`: masks, a memory."""
        return self._through(x, lambda layer, index, states: layer(states, *context))

    def step(self, x: Tensor, state: DecoderState) -> Tensor:
        """Pass one position of K beams, (B, K, d), through all layers, each with its own past."""
        return self._through(x, lambda layer, index, states: layer.step(states, state, index))

    def _through(self, x: Tensor, apply: Callable[[Any, int, Tensor], Tensor]) -> Tensor:
        parts = []
        for index, layer in enumerate(self):
            x = apply(layer, index, x)
            if self.composition is not None:
                parts.append(x)
        return x if self.composition is None else self.composition(parts)


def embed(embedding: nn.Module, positions: SinusoidalPositions, ids: Tensor, dropout: float = 0.0) -> Tensor:
    """Embed ids (B, T), scaled by √d (Vaswani et al. §3.4), with positions added and dropout: (B, T, d)."""
    x = embedding(ids)  # (B, T, d)
    x = x * math.sqrt(x.shape[-1]) + positions(ids.shape[1])
    return F.dropout(x, dropout) if dropout else x


class Transformer(nn.Module):
    """Encoder-decoder over token ids. Ids 0 (padding) are not attended to.

    Both embeddings may be one module. A norm behind a stack is a layer norm or an identity. Without a generator the
    target embedding's weight maps to the vocabulary. `dropout` is on the embeddings.
    """

    def __init__(
        self,
        source_embedding: PHMEmbedding | NarrowEmbedding,
        target_embedding: PHMEmbedding | NarrowEmbedding,
        positions: SinusoidalPositions,
        encoder: Stack,
        decoder: Stack,
        *,
        encoder_norm: nn.Module,
        decoder_norm: nn.Module,
        generator: PHMLinear | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.source_embedding, self.target_embedding = source_embedding, target_embedding
        self.positions = positions
        self.encoder, self.decoder = encoder, decoder
        self.encoder_norm, self.decoder_norm = encoder_norm, decoder_norm
        self.generator = generator
        self.dropout = dropout

    def forward(
        self, source: Tensor, target: Tensor, labels: Tensor | None = None, smoothing: float = 0.0
    ) -> Tensor | tuple[Tensor, Tensor]:
        """Map source ids (B, S) and decoder input ids (B, T), which begin with BOS, to hidden states (B, T, d).

        With `labels` (B, T), PAD where none is, return the two sums of :func:`phmctl.nn.loss.vocabulary_loss` instead:
        wrappers such as ``DistributedDataParallel`` see only what is computed in here.
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
        """Map hidden states (..., d) to logits (..., V)."""
        return F.linear(*self.output(hidden))

    def output(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return states, weight and bias (V,) or None whose linear map are the logits: (..., d) and (V, d).

        Of a tied table of e columns they have e in place of d.
        """
        if self.generator is not None:
            return hidden, self.generator.weight, self.generator.bias
        embedding = self.target_embedding
        if isinstance(embedding, NarrowEmbedding):
            return F.linear(hidden, embedding.map.weight.T), embedding.table.weight, None
        return hidden, embedding.weight, None

    def start(self, memory: Memory, beams: int, max_length: int) -> DecoderState:
        """Begin decoding the memory's sentences with `beams` hypotheses each, for at most `max_length` steps."""
        memories = [layer.cross_attention.project_memory(memory.states) for layer in self.decoder]
        return DecoderState(memories, memory.mask, beams, max_length)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Map the last tokens (B, K) to the next token's logits (B, K, V); the state advances."""
        x = self.target_embedding(tokens)  # (B, K, d)
        x = x * math.sqrt(x.shape[-1]) + self.positions(1, state.position)
        x = self.decoder.step(x, state)
        state.position += 1
        return self.logits(self.decoder_norm(x))

    def _embed(self, embedding: nn.Module, ids: Tensor) -> Tensor:
        return embed(embedding, self.positions, ids, self.dropout if self.training else 0.0)  # (B, T, d)
