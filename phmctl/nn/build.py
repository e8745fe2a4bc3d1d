"""The one place that turns an algebra and an n into linear maps and embeddings: every model asks this builder."""

from typing import Literal

import torch
from torch import nn

from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import PHMLinear

RuleSharing = Literal["separate", "sublayer", "model"]


class LinearBuilder:
    """Builds the linear maps of one model.

    Args:
        algebra: ``real``, ``complex``, ``quaternion``, ``octonion``, ``sedenion`` or ``phm``.
        n: the PHM hyperparameter; a fixed algebra implies it.
        rules: how far a learned rule A reaches: each map its own (``separate``), one for the maps of a sublayer, or one
            for the whole model.
        bias: whether the maps have biases.
        device: where parameters are allocated; ``meta`` allocates nothing.
    """

    def __init__(
        self,
        algebra: str,
        n: int,
        *,
        rules: RuleSharing = "separate",
        bias: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        self.algebra = algebra
        self.n = n
        self.rules = rules
        self.bias = bias
        self.device = device
        self._shared: nn.Parameter | None = None

    def sublayer(self) -> "LinearBuilder":
        """Return the builder for one sublayer's maps: itself, unless each sublayer has a rule of its own."""
        if self.rules != "sublayer":
            return self
        return LinearBuilder(self.algebra, self.n, rules=self.rules, bias=self.bias, device=self.device)

    def linear(self, in_features: int, out_features: int, *, splits: int = 1, bias: bool | None = None) -> PHMLinear:
        """Build one map; `splits` says how many maps are stacked in it (fused QKV: 3), for the initialisation's fan."""
        layer = PHMLinear(
            in_features,
            out_features,
            self.n,
            self.bias if bias is None else bias,
            algebra=self.algebra,
            rule=self._shared,
            initialization="xavier_uniform",
            splits=splits,
            device=self.device,
        )
        rule = getattr(layer, "A", None)  # none at n = 1, a buffer of a fixed algebra
        if self.rules != "separate" and self._shared is None and isinstance(rule, nn.Parameter):
            self._shared = rule
        return layer

    def embedding(self, vocabulary: int, width: int, *, hypercomplex: bool) -> PHMEmbedding:
        """Build an embedding table (vocabulary × width), dense or by this builder's algebra (PHM+)."""
        algebra, n = (self.algebra, self.n) if hypercomplex else ("real", 1)
        return PHMEmbedding(
            vocabulary,
            width,
            n,
            algebra=algebra,
            initialization="embedding",  # N(0, 1/d): with the factor √d at the input the states begin at unit variance
            device=self.device,
        )
