"""The encoder-decoder Transformer, real or PHM (Vaswani et al. 2017; Zhang et al. 2021, §4.2)."""

import math

import torch
from torch import Tensor, nn

from phmctl.algebra.products import linear
from phmctl.data.special import PAD
from phmctl.models.layers import DecoderLayer, EncoderLayer, embed
from phmctl.models.state import DecoderState, Memory
from phmctl.nn.build import LinearBuilder, builder_for
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import PHMLinear
from phmctl.nn.loss import vocabulary_loss
from phmctl.nn.positions import SinusoidalPositions
from phmctl.recipe.schema import TransformerSection


class Transformer(nn.Module):
    """Encoder-decoder over token ids. Ids 0 (padding) are not attended to.

    Args:
        settings: the recipe's model section.
        source_vocabulary: rows of the source embedding.
        target_vocabulary: rows of the target embedding and of the generator; the source's if the table is shared.
        device: where parameters are allocated; ``meta`` allocates nothing.

    Raises:
        DimensionError: n does not divide a dimension.
    """

    def __init__(
        self,
        settings: TransformerSection,
        source_vocabulary: int,
        target_vocabulary: int,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        builder = builder_for(settings, device)
        hypercomplex = settings.embeddings == "phm"
        width = settings.width
        self.source_embedding = builder.embedding(source_vocabulary, width, hypercomplex=hypercomplex)
        self.target_embedding: PHMEmbedding = (
            self.source_embedding
            if settings.share_embeddings
            else builder.embedding(target_vocabulary, width, hypercomplex=hypercomplex)
        )
        self.positions = SinusoidalPositions(width, device)
        self.encoder = nn.ModuleList(EncoderLayer(settings, builder, device) for _ in range(settings.encoder_layers))
        self.decoder = nn.ModuleList(DecoderLayer(settings, builder, device) for _ in range(settings.decoder_layers))
        self.encoder_norm = nn.LayerNorm(width, device=device) if settings.final_norm else nn.Identity()
        self.decoder_norm = nn.LayerNorm(width, device=device) if settings.final_norm else nn.Identity()
        self.generator = _generator(settings, builder, target_vocabulary)

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
        weight, bias = self.output_map()
        return vocabulary_loss(hidden, weight, bias, labels, smoothing=smoothing, ignore=PAD)

    def encode(self, source: Tensor) -> Memory:
        """Encode source ids (B, S)."""
        mask = (source != PAD)[:, None, None, :]  # (B, 1, 1, S)
        x = self._embed(self.source_embedding, source)
        for layer in self.encoder:
            x = layer(x, mask)
        return Memory(self.encoder_norm(x), mask)

    def decode(self, memory: Memory, target: Tensor) -> Tensor:
        """Map decoder input ids (B, T) to hidden states (B, T, d)."""
        x = self._embed(self.target_embedding, target)
        for layer in self.decoder:
            x = layer(x, memory.states, memory.mask)
        return self.decoder_norm(x)  # type: ignore[no-any-return]

    def logits(self, hidden: Tensor) -> Tensor:
        """Map hidden states (..., d) to logits (..., V)."""
        if self.generator is not None:
            return self.generator(hidden)  # type: ignore[no-any-return]
        return linear(hidden, self.target_embedding.weight)

    def output_map(self) -> tuple[Tensor, Tensor | None]:
        """Return the generator's weight (V, d) and its bias (V,) or None."""
        if self.generator is None:
            return self.target_embedding.weight, None
        return self.generator.weight, self.generator.bias

    def start(self, memory: Memory, beams: int, max_length: int) -> DecoderState:
        """Begin decoding the memory's sentences with `beams` hypotheses each, for at most `max_length` steps."""
        memories = [layer.cross_attention.project_memory(memory.states) for layer in self.decoder]  # type: ignore[union-attr,operator]
        return DecoderState(memories, memory.mask, beams, max_length)

    def step(self, tokens: Tensor, state: DecoderState) -> Tensor:
        """Take one step: the last tokens (B, K) to the next token's logits (B, K, V); the state advances."""
        scale = math.sqrt(self.settings.width)
        x = self.target_embedding(tokens) * scale + self.positions(1, state.position)  # (B, K, d)
        for layer, cache in zip(self.decoder, state.layers, strict=True):
            x = layer.step(x, cache, state.mask)  # type: ignore[operator]
        state.position += 1
        return self.logits(self.decoder_norm(x))

    def _embed(self, embedding: PHMEmbedding, ids: Tensor) -> Tensor:
        return embed(embedding, self.positions, ids, self.settings.dropout if self.training else 0.0)  # (B, T, d)


def _generator(settings: TransformerSection, builder: LinearBuilder, vocabulary: int) -> PHMLinear | None:
    """Build the map to the vocabulary, or None if it is the target embedding's table."""
    if settings.generator == "tied":
        return None
    hypercomplex = settings.generator == "phm"
    chosen = builder if hypercomplex else LinearBuilder("real", 1, device=builder.device)
    return chosen.linear(settings.width, vocabulary, bias=settings.generator_bias)


def build_transformer(
    settings: TransformerSection,
    source_vocabulary: int,
    target_vocabulary: int,
    device: torch.device | str | None = None,
) -> Transformer:
    """Build the model of a recipe for tokenizers of the given sizes.

    A PHM table must have rows that n divides: its vocabulary is rounded up, and decoding never emits the ids added.
    """
    if settings.share_embeddings:
        source_vocabulary = target_vocabulary = max(source_vocabulary, target_vocabulary)
    tables, generator = settings.embeddings == "phm", settings.generator == "phm"
    if tables:
        source_vocabulary = _round_up(source_vocabulary, settings.dimension)
    if tables or generator:
        target_vocabulary = _round_up(target_vocabulary, settings.dimension)
    if settings.share_embeddings:
        source_vocabulary = target_vocabulary  # the one table has the generator's rows
    return Transformer(settings, source_vocabulary, target_vocabulary, device)


def _round_up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple
