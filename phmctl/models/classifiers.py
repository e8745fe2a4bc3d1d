"""Classifiers: of one text by a Transformer encoder (Table 5 of the PHM paper), of two by a PHM-LSTM (Table 1)."""

from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.data.special import PAD
from phmctl.errors import DimensionError
from phmctl.models.transformer import Stack, embed
from phmctl.nn.build import LinearBuilder
from phmctl.nn.embedding import NarrowEmbedding, PHMEmbedding
from phmctl.nn.layers import POOLINGS, SinusoidalPositions, max_pool, mean_pool
from phmctl.nn.linear import PHMLinear
from phmctl.nn.lstm import PHMLSTM, Cell, Gates


class EncoderClassifier(nn.Module):
    """A label for a text, from token ids: embedding, encoder layers, one pooled state, one dense map to the classes.

    ``pooling`` says which state the label is read from. ``last`` takes the last token's: of a prefix that ends before
    the verb, the place where the verb's number is due. ``mean`` takes the mean over all tokens: what Tensor2Tensor,
    the PHM paper's public code base, does for a task with class labels (with one dense layer behind it, as here). The
    paper (§5.4, appendix B.4) does not say which it took.

    The maps of the layers are PHM. The embedding and the map to the classes are dense: Table 5's counts hold neither,
    and n need not divide the number of classes. `dropout` is on the embeddings.
    """

    def __init__(
        self,
        embedding: PHMEmbedding | NarrowEmbedding,
        positions: SinusoidalPositions,
        encoder: Stack,
        encoder_norm: nn.Module,
        output: PHMLinear,
        *,
        pooling: str = "last",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.embedding, self.positions = embedding, positions
        self.encoder, self.encoder_norm, self.output = encoder, encoder_norm, output
        self.pooling, self.dropout = pooling, dropout

    @property
    def encoded_width(self) -> int:
        return self.embedding.embedding_dim

    def forward(self, tokens: Tensor) -> Tensor:
        """Map a text's ids (B, S), PAD behind each text, to logits (B, classes)."""
        return self.output(self.encode(tokens))  # type: ignore[no-any-return]

    def encode(self, tokens: Tensor) -> Tensor:
        """Read texts (B, S) into vectors (B, d). A text without tokens gives zeros."""
        mask = tokens != PAD  # (B, S)
        seen = mask.clone()
        seen[:, :1] = True  # attention must see something, even where there is no token
        dropout = self.dropout if self.training else 0.0
        x = embed(self.embedding, self.positions, tokens, dropout)  # (B, S, d)
        x = self.encoder(x, seen[:, None, None, :])  # (B, S, d)
        return POOLINGS[self.pooling](self.encoder_norm(x), mask)


class PairClassifier(nn.Module):
    """A label for two texts, from token ids.

    ::

        u, v = [max over time; mean over time] of LSTM(first), LSTM(second)     the same LSTM
        logits = W₃ ReLU(W₂ ReLU(W₁ x))                                         W₁, W₂ 300 wide

    with x = [u; v] (``combination: concat``), or [u; v; |u − v|; u ∗ v] (``full``). Appendix B.1 gives the
    concatenated pooled states themselves to the MLP and names no difference or product, so ``concat`` is the paper's
    reading; ``full`` is common elsewhere (Mou et al. 2016, Conneau et al. 2017). "Two-layer 300D" is read as two
    hidden layers of 300 and the map to the classes.

    The PHM maps are the LSTM's, which `builder` makes. The embeddings and the MLP are dense in every variant: Table 1's
    counts are those of the LSTM to the unit and hold nothing else, and its text replaces the LSTM's maps only.

    `vectors` (vocabulary, embedding_width), such as GloVe's, are the embedding, which is then not trained. `dropout` is
    on embeddings and before each map of the MLP. Raises DimensionError where n does not divide a dimension, or the
    vectors have another shape than the table.
    """

    def __init__(
        self,
        builder: LinearBuilder,
        vocabulary: int,
        classes: int,
        *,
        embedding_width: int = 300,
        width: int = 300,
        hidden: int = 300,
        gates: Gates = "separate",
        cell: Cell = "standard",
        combination: str = "concat",
        dropout: float = 0.0,
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.combination, self.dropout = combination, dropout
        dense = LinearBuilder("real", 1, device=builder.device)
        self.embedding: PHMEmbedding = dense.embedding(
            vocabulary, embedding_width, hypercomplex=False, initialization="standard_normal"
        )
        if vectors is not None:
            if vectors.shape != self.embedding.weight.shape:
                raise DimensionError(
                    f"vectors of shape {tuple(vectors.shape)} do not fit {vocabulary} token types of "
                    f"embedding_width = {embedding_width}"
                )
            with torch.no_grad():
                self.embedding.weight.copy_(vectors)
            self.embedding.weight.requires_grad_(False)
        self.lstm = PHMLSTM(embedding_width, width, gates=gates, cell=cell, builder=builder)
        parts = {"concat": 2, "full": 4}[combination]  # what the MLP reads, in vectors as wide as u
        self.mlp = nn.ModuleList(dense.linear(*pair) for pair in pairwise([parts * self.encoded_width, hidden, hidden]))
        self.output = dense.linear(hidden, classes)

    @property
    def encoded_width(self) -> int:
        return 2 * self.lstm.hidden_size

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Map two texts' ids, (B, S) and (B, S′) with PAD behind each text, to logits (B, classes).

        A text without tokens is read as a vector of zeros.
        """
        steps = max(first.shape[1], second.shape[1], 1)
        both = [F.pad(ids, (0, steps - ids.shape[1]), value=PAD) for ids in (first, second)]  # (B, S) each
        u, v = self.encode(torch.cat(both)).chunk(2)  # (B, 2h) each; one time loop for both
        return self.compare(u, v)

    def encode(self, ids: Tensor) -> Tensor:
        """Read texts (B, S) into vectors (B, 2h): the maximum and the mean of the states over time.

        Lengths, which are values, are asked for on a CPU alone: elsewhere a step would wait for the device. The LSTM
        runs over padding there, which nothing looks at.
        """
        mask = ids != PAD  # (B, S)
        words = self._drop(self.embedding(ids))  # (B, S, e)
        lengths = mask.sum(1).clamp(min=1) if ids.is_cpu else None  # the LSTM takes a step at least
        states, _ = self.lstm(words, lengths)  # (B, S, h)
        return torch.cat([max_pool(states, mask), mean_pool(states, mask)], dim=1)

    def compare(self, u: Tensor, v: Tensor) -> Tensor:
        """Map two texts' vectors (B, 2h) to logits (B, classes)."""
        parts = [u, v] if self.combination == "concat" else [u, v, (u - v).abs(), u * v]
        x = torch.cat(parts, dim=1)  # (B, 4h) or (B, 8h)
        for layer in self.mlp:
            x = layer(self._drop(x)).relu()  # (B, hidden)
        return self.output(self._drop(x))  # type: ignore[no-any-return]

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class RuleModel(nn.Module):
    """``y = Hx``, with as many features out as in. Raises DimensionError where n does not divide them."""

    def __init__(self, builder: LinearBuilder, features: int) -> None:
        super().__init__()
        self.product = builder.linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        """Return the products. (B, d) -> (B, d)."""
        return self.product(x)  # type: ignore[no-any-return]
