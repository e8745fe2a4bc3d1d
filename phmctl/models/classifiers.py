"""Classifiers of texts (Transformer encoder, Table 5 of the PHM paper) and sentence pairs (PHM-LSTM, Table 1)."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.data import PAD
from phmctl.errors import DimensionError
from phmctl.models.transformer import Device, EncoderLayer, Stack, builder_of, embed, final_norm, table
from phmctl.nn.layers import POOLINGS, LinearBuilder, max_pool, mean_pool
from phmctl.nn.lstm import PHMLSTM
from phmctl.recipe.models import EncoderClassifierSection, PairClassifierSection, ProbeSection, RuleModelSection


class EncoderClassifier(nn.Module):
    """Classify a text: embedding, encoder layers, pooling, and a dense map to the classes.

    ``pooling: last`` uses the last token's state. If a prefix ends before the verb, this is the position that predicts
    the verb's number. ``mean`` averages over all tokens, like Tensor2Tensor, the PHM paper's public code base, does for
    class labels (followed by a dense layer, as here). The paper (§5.4, appendix B.4) does not say which one it used.

    The encoder layers are PHM. The embedding and the map to the classes are dense: Table 5 counts neither, and n need
    not divide the number of classes.

    Raises:
        DimensionError: n does not divide a dimension.
    """

    def __init__(self, section: EncoderClassifierSection, vocabulary: int, classes: int, device: Device = None) -> None:
        super().__init__()
        builder = builder_of(section, device)
        self.embedding = table(section, builder, vocabulary)
        self.encoder = Stack(section, builder, section.layers, EncoderLayer)
        self.encoder_norm = final_norm(section, device)
        self.output = LinearBuilder("real", 1, device=device).linear(section.width, classes)
        self.pooling, self.dropout = section.pooling, section.dropout

    @property
    def encoded_width(self) -> int:
        return self.embedding.embedding_dim

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits (B, classes) for ids (B, S), padded at the end."""
        return self.output(self.encode(tokens))  # type: ignore[no-any-return]

    def encode(self, tokens: Tensor) -> Tensor:
        """Return a vector (B, d) for each text (B, S). An empty text gives zeros."""
        mask = tokens != PAD  # (B, S)
        attended = mask.clone()
        attended[:, :1] = True  # attention over an empty set gives NaN
        dropout = self.dropout if self.training else 0.0
        x = embed(self.embedding, tokens, dropout)  # (B, S, d)
        x = self.encoder(x, attended[:, None, None, :])  # (B, S, d)
        return POOLINGS[self.pooling](self.encoder_norm(x), mask)


class PairClassifier(nn.Module):
    """Classify a pair of texts.

    ::

        u, v = [max over time; mean over time] of LSTM(first), LSTM(second)     the same LSTM
        logits = W₃ ReLU(W₂ ReLU(W₁ x))                                         W₁, W₂ 300 wide

    with x = [u; v] (``combination: concat``) or [u; v; |u − v|; u ∗ v] (``full``). In appendix B.1 the MLP's input is
    the concatenated pooled states, without a difference or product, so ``concat`` follows the paper. ``full`` is common
    elsewhere (Mou et al. 2016, Conneau et al. 2017). We read "two-layer 300D" as two hidden layers of width 300 before
    the map to the classes.

    The embedding and the MLP are always dense: Table 1's counts equal the LSTM's parameters exactly, and the paper's
    text replaces only the LSTM's maps. Dropout is applied to the embeddings and before each map of the MLP.

    Raises:
        DimensionError: n does not divide a dimension.
    """

    def __init__(self, section: PairClassifierSection, vocabulary: int, classes: int, device: Device = None) -> None:
        super().__init__()
        width, hidden, dense = section.embedding_width, section.hidden, LinearBuilder("real", 1, device=device)
        self.combination, self.dropout = section.combination, section.dropout
        self.embedding = dense.embedding(vocabulary, width, hypercomplex=False, initialization="standard_normal")
        builder = builder_of(section, device)
        self.lstm = PHMLSTM(width, section.width, gates=section.gates, builder=builder)
        combined = (2 if self.combination == "concat" else 4) * self.encoded_width
        self.mlp = nn.ModuleList([dense.linear(combined, hidden), dense.linear(hidden, hidden)])
        self.output = dense.linear(hidden, classes)

    @torch.no_grad()
    def freeze_embedding(self, vectors: Tensor) -> None:
        """Replace the embedding by word vectors (vocabulary, embedding_width) such as GloVe, which are not trained.

        Raises DimensionError if they have another shape.
        """
        weight = self.embedding.weight
        if vectors.shape != weight.shape:
            raise DimensionError(
                f"the vectors have shape {tuple(vectors.shape)}, but the model's embedding has {tuple(weight.shape)}"
            )
        weight.copy_(vectors)
        weight.requires_grad_(False)

    @property
    def encoded_width(self) -> int:
        return 2 * self.lstm.hidden_size

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        """Return logits (B, classes) for two texts' ids, (B, S) and (B, S′), padded at the end."""
        steps = max(first.shape[1], second.shape[1], 1)
        padded = [F.pad(ids, (0, steps - ids.shape[1]), value=PAD) for ids in (first, second)]  # (B, steps) each
        u, v = self.encode(torch.cat(padded)).chunk(2)  # (B, 2h) each, from a single loop over time
        return self.compare(u, v)

    def encode(self, ids: Tensor) -> Tensor:
        """Return a vector (B, 2h) for each text (B, S): the maximum and the mean of the states over time.

        An empty text gives zeros. Lengths are passed to the LSTM only on a CPU, because elsewhere reading them would
        synchronise with the device. The LSTM then also runs over the padding, and pooling ignores those states.
        """
        mask = ids != PAD  # (B, S)
        embedded = self._drop(self.embedding(ids))  # (B, S, e)
        lengths = mask.sum(1).clamp(min=1) if ids.is_cpu else None  # the LSTM needs at least one step
        states, _ = self.lstm(embedded, lengths)  # (B, S, h)
        return torch.cat([max_pool(states, mask), mean_pool(states, mask)], dim=1)

    def compare(self, u: Tensor, v: Tensor) -> Tensor:
        """Return logits (B, classes) for the vectors (B, 2h) of two texts."""
        features = [u, v] if self.combination == "concat" else [u, v, (u - v).abs(), u * v]
        x = torch.cat(features, dim=1)  # (B, 4h) or (B, 8h)
        for layer in self.mlp:
            x = layer(self._drop(x)).relu()  # (B, hidden)
        return self.output(self._drop(x))  # type: ignore[no-any-return]

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)


class RuleModel(nn.Module):
    """The square map ``y = Hx``. Raises DimensionError if n does not divide the number of features."""

    def __init__(self, section: RuleModelSection, features: int, device: Device = None) -> None:
        super().__init__()
        self.product = builder_of(section, device).linear(features, features)

    def forward(self, x: Tensor) -> Tensor:
        """Return Hx for each row of x. (B, d) -> (B, d)."""
        return self.product(x)  # type: ignore[no-any-return]


class Probe(nn.Sequential):
    """Map sentence vectors (B, width) to logits (B, classes): a logistic regression, unless it has a hidden layer.

    The hidden layer and the sigmoid follow SentEval (Conneau et al. 2018).

    Raises:
        DimensionError: n does not divide `width`.
    """

    def __init__(self, section: ProbeSection, width: int, classes: int, device: Device = None) -> None:
        super().__init__()
        if section.hidden:
            self.hidden = builder_of(section, device).linear(width, section.hidden)
            self.sigmoid = nn.Sigmoid()
        self.output = LinearBuilder("real", 1, device=device).linear(section.hidden or width, classes)
