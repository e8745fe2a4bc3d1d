"""The Transformer encoder as a classifier of one text, as in Table 5 (PHM, §5.4 and appendix B.4)."""

import torch
from torch import Tensor, nn

from phmctl.data.special import PAD
from phmctl.models.layers import EncoderLayer, embed
from phmctl.nn.build import LinearBuilder, builder_for
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.loss import label_loss
from phmctl.nn.pooling import POOLINGS
from phmctl.nn.positions import SinusoidalPositions
from phmctl.recipe.schema import EncoderClassifierSection


class EncoderClassifier(nn.Module):
    """A label for a text, from token ids: embedding, encoder layers, one pooled state, one dense map to the classes.

    ``pooling`` says which state the label is read from. ``last`` takes the last token's: of a prefix that ends before
    the verb, the place where the verb's number is due. ``mean`` takes the mean over all tokens: what Tensor2Tensor,
    the PHM paper's public code base, does for a task with class labels (with one dense layer behind it, as here). The
    paper does not say which it took.

    The maps of the layers are PHM. The embedding and the map to the classes are dense: Table 5's counts hold neither,
    and n need not divide the number of classes.

    Args:
        settings: the recipe's model section.
        vocabulary: rows of the embedding.
        classes: how many labels.
        device: where parameters are allocated; ``meta`` allocates nothing.

    Raises:
        DimensionError: n does not divide a dimension.
    """

    def __init__(
        self,
        settings: EncoderClassifierSection,
        vocabulary: int,
        classes: int,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.settings = settings
        builder, dense = builder_for(settings, device), LinearBuilder("real", 1, device=device)
        self.embedding: PHMEmbedding = dense.embedding(vocabulary, settings.width, hypercomplex=False)
        self.positions = SinusoidalPositions(settings.width, device)
        self.encoder = nn.ModuleList(EncoderLayer(settings, builder, device) for _ in range(settings.layers))
        self.encoder_norm = nn.LayerNorm(settings.width, device=device) if settings.final_norm else nn.Identity()
        self.output = dense.linear(settings.width, classes)

    @property
    def encoded_width(self) -> int:
        """Width of what :meth:`encode` returns."""
        return self.settings.width

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
        dropout = self.settings.dropout if self.training else 0.0
        x = embed(self.embedding, self.positions, tokens, dropout)  # (B, S, d)
        for layer in self.encoder:
            x = layer(x, seen[:, None, None, :])  # (B, S, d)
        return POOLINGS[self.settings.pooling](self.encoder_norm(x), mask)
