"""A bare ``nn.Transformer`` of a recipe's shape: the yardstick of ``bench train``."""

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.data.special import PAD


class BareTransformer(nn.Module):
    """Embedding, ``nn.Transformer`` and tied generator, as a tutorial would write them, for one vocabulary."""

    def __init__(
        self,
        vocabulary: int,
        width: int,
        heads: int,
        feed_forward: int,
        *,
        encoder_layers: int,
        decoder_layers: int,
        pre_norm: bool,
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation_dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.scale = math.sqrt(width)
        self.embedding = nn.Embedding(vocabulary, width)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        self.positions = nn.Parameter(torch.zeros(1024, width), requires_grad=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="enable_nested_tensor")  # a fast path of inference only
            self.transformer = nn.Transformer(
                width,
                heads,
                encoder_layers,
                decoder_layers,
                feed_forward,
                dropout,
                batch_first=True,
                norm_first=pre_norm,
            )
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = activation_dropout
            layer.self_attn.dropout = attention_dropout
            if hasattr(layer, "multihead_attn"):
                layer.multihead_attn.dropout = attention_dropout

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map ids (B, S) and (B, T) to logits (B, T, V)."""
        length = target.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=target.device)  # (T, T)
        padding = source == PAD  # (B, S)
        hidden = self.transformer(
            *map(self._embed, (source, target)),
            tgt_mask=causal,
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )  # (B, T, d)
        return F.linear(hidden, self.embedding.weight)

    def _embed(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.embedding.weight) * self.scale + self.positions[: ids.shape[1]]


def bare_loss(model: nn.Module, source: Tensor, target: Tensor, smoothing: float) -> Tensor:
    """Return the mean label-smoothed cross-entropy of a batch: source (B, S), target (B, T + 1) from BOS to EOS."""
    logits = model(source, target[:, :-1])  # (B, T, V)
    return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=smoothing)
