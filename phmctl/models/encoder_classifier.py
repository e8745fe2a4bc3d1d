"""The Transformer encoder as a classifier of one text, as in Table 5 (PHM, §5.4 and appendix B.4)."""

from torch import Tensor, nn

from phmctl.data.special import PAD
from phmctl.models.layers import embed
from phmctl.models.stack import Stack
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import PHMLinear
from phmctl.nn.loss import label_loss
from phmctl.nn.pooling import POOLINGS
from phmctl.nn.positions import SinusoidalPositions


class EncoderClassifier(nn.Module):
    """A label for a text, from token ids: embedding, encoder layers, one pooled state, one dense map to the classes.

    ``pooling`` says which state the label is read from. ``last`` takes the last token's: of a prefix that ends before
    the verb, the place where the verb's number is due. ``mean`` takes the mean over all tokens: what Tensor2Tensor,
    the PHM paper's public code base, does for a task with class labels (with one dense layer behind it, as here). The
    paper does not say which it took.

    The maps of the layers are PHM. The embedding and the map to the classes are dense: Table 5's counts hold neither,
    and n need not divide the number of classes.

    Args:
        embedding: the table of tokens.
        positions: added to the embeddings.
        encoder: its layers.
        encoder_norm: behind them: a layer norm, or an identity.
        output: the map to the classes.
        pooling: ``last`` or ``mean``.
        dropout: on the embeddings.
    """

    def __init__(
        self,
        embedding: PHMEmbedding,
        positions: SinusoidalPositions,
        encoder: Stack,
        encoder_norm: nn.Module,
        output: PHMLinear,
        *,
        pooling: str = "last",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding = embedding
        self.positions = positions
        self.encoder = encoder
        self.encoder_norm = encoder_norm
        self.output = output
        self.pooling = pooling
        self.dropout = dropout

    @property
    def encoded_width(self) -> int:
        """Width of what :meth:`encode` returns."""
        return self.embedding.embedding_dim

    def forward(self, tokens: Tensor, *, labels: Tensor | None = None, smoothing: float = 0.0) -> Tensor:
        """Map a text's ids (B, S), PAD behind each text, to logits (B, classes).

        With `labels` (B,), return the label-smoothed cross-entropy summed over the examples instead.
        """
        logits = self.output(self.encode(tokens))  # (B, classes)
        return logits if labels is None else label_loss(logits, labels, smoothing)

    def encode(self, tokens: Tensor) -> Tensor:
        """Read texts (B, S) into vectors (B, d). A text without tokens gives zeros."""
        mask = tokens != PAD  # (B, S)
        seen = mask.clone()
        seen[:, :1] = True  # attention must see something, even where there is no token
        dropout = self.dropout if self.training else 0.0
        x = embed(self.embedding, self.positions, tokens, dropout)  # (B, S, d)
        x = self.encoder(x, seen[:, None, None, :])  # (B, S, d)
        return POOLINGS[self.pooling](self.encoder_norm(x), mask)
