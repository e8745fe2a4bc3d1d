"""The encoder-decoder Transformer, real or PHM (Vaswani et al. 2017; Zhang et al. 2021, §4.2)."""

import math

from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.data.special import PAD
from phmctl.models.stack import Stack, embed
from phmctl.models.state import DecoderState, Memory
from phmctl.nn.embedding import NarrowEmbedding, PHMEmbedding
from phmctl.nn.layers import SinusoidalPositions
from phmctl.nn.linear import PHMLinear
from phmctl.nn.loss import vocabulary_loss


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
        """Encode source ids (B, S)."""
        mask = (source != PAD)[:, None, None, :]  # (B, 1, 1, S)
        x = self._embed(self.source_embedding, source)
        return Memory(self.encoder_norm(self.encoder(x, mask)), mask)

    def decode(self, memory: Memory, target: Tensor) -> Tensor:
        """Map decoder input ids (B, T) to hidden states (B, T, d)."""
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
        if isinstance(self.target_embedding, NarrowEmbedding):
            return *self.target_embedding.as_output(hidden), None
        return hidden, self.target_embedding.weight, None

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
