"""A bare ``nn.Transformer`` of a recipe's shape: the yardstick of ``bench train``."""

import math
import warnings

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.data.special import PAD
from phmctl.recipe.schema import TransformerSection


class BareTransformer(nn.Module):
    """Embedding, ``nn.Transformer`` and tied generator, as a tutorial would write them.

    Args:
        settings: the recipe's model section, for widths, layers and dropouts.
        vocabulary: V, of both sides.
    """

    def __init__(self, settings: TransformerSection, vocabulary: int) -> None:
        super().__init__()
        self.scale = math.sqrt(settings.width)
        self.embedding = nn.Embedding(vocabulary, settings.width)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        self.positions = nn.Parameter(torch.zeros(1024, settings.width), requires_grad=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="enable_nested_tensor")  # a fast path of inference only
            self.transformer = nn.Transformer(
                settings.width,
                settings.heads,
                settings.encoder_layers,
                settings.decoder_layers,
                settings.feed_forward,
                settings.dropout,
                batch_first=True,
                norm_first=settings.norm == "pre",
            )
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = settings.activation_dropout
            layer.self_attn.dropout = settings.attention_dropout
            if hasattr(layer, "multihead_attn"):
                layer.multihead_attn.dropout = settings.attention_dropout

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Map ids (B, S) and (B, T) to logits (B, T, V)."""
        length = target.shape[1]
        causal = nn.Transformer.generate_square_subsequent_mask(length, device=target.device)  # (T, T)
        padding = source == PAD  # (B, S)
        hidden = self.transformer(
            self._embed(source),
            self._embed(target),
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
