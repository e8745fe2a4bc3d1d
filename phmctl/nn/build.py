"""The builder of a model's linear maps and embeddings, for one algebra and one n."""

from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Literal, cast

import torch

from phmctl.algebra.kronecker import LEARNED
from phmctl.dimension import LOW_RANK, TWO_FACTORS
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import RULE, PHMLinear, TwoFactorLinear

RuleSharing = Literal["separate", "sublayer", "model"]


@dataclass(eq=False)
class LinearBuilder:
    """Builds the linear maps of one model.

    Args:
        algebra: ``real``, ``complex``, ``quaternion``, ``octonion``, ``sedenion`` or ``phm``; or a name in
            :data:`~phmctl.dimension.TWO_FACTORS`, for comparison.
        n: the PHM hyperparameter, implied by a fixed algebra; the number of blocks of ``monarch``.
        rules: scope of a learned rule: each map has its own (``separate``), the maps of a sublayer share one, or all
            maps of the model.
        bias: whether the maps have biases.
        execution: ``dense`` or ``rank``; None is the default of each map.
        parametrization: form of a learned rule: A (``rule``) or its ``factors``.
        rank: rank of the factors (default: the rank of a random rule) or of ``low-rank`` maps.
        device: device of the parameters; ``meta`` allocates nothing.
    """

    algebra: str
    n: int
    _: KW_ONLY
    rules: RuleSharing = "separate"
    bias: bool = True
    execution: str | None = None
    parametrization: str = RULE
    rank: int | None = None
    device: torch.device | str | None = None
    _first: PHMLinear | None = field(default=None, init=False)  # the map whose rule the later maps share

    def sublayer(self) -> "LinearBuilder":
        """Return the builder for the maps of one sublayer: a copy if each sublayer has its own rule, else itself."""
        return replace(self) if self.rules == "sublayer" else self

    def map(
        self, in_features: int, out_features: int, *, splits: int = 1, bias: bool | None = None
    ) -> PHMLinear | TwoFactorLinear:
        """Build one map of a Transformer, which may have two thin factors; see :meth:`linear`."""
        if self.algebra not in TWO_FACTORS:
            return self.linear(in_features, out_features, splits=splits, bias=bias)
        return TwoFactorLinear(
            in_features,
            out_features,
            blocks=self.n,
            inner=cast("int", self.rank) if self.algebra == LOW_RANK else min(in_features, out_features),
            bias=self.bias if bias is None else bias,
            splits=splits,
            device=self.device,
        )

    def linear(self, in_features: int, out_features: int, *, splits: int = 1, bias: bool | None = None) -> PHMLinear:
        """Build one map that stacks `splits` maps (fused QKV: 3), which decide the fan-out of the initialisation."""
        learned = self.algebra == LEARNED and self.n != 1
        layer = PHMLinear(
            in_features,
            out_features,
            n=self.n,
            bias=self.bias if bias is None else bias,
            algebra=self.algebra,
            initialization="xavier_uniform",
            splits=splits,
            execution=self.execution,
            parametrization=self.parametrization if learned else RULE,
            rank=self.rank if learned else None,
            device=self.device,
        )
        if learned and self.rules != "separate":
            if self._first is None:
                self._first = layer
            else:
                layer.share_rule(self._first)
        return layer

    def embedding(
        self, vocabulary: int, width: int, *, hypercomplex: bool, initialization: str = "embedding"
    ) -> PHMEmbedding:
        """Build an embedding table (vocabulary, width), dense or with this builder's algebra (PHM+).

        The default initialization, N(0, 1/d), gives a Transformer states of unit variance after the factor √d.
        """
        algebra, n = (self.algebra, self.n) if hypercomplex else ("real", 1)
        return PHMEmbedding(vocabulary, width, n=n, algebra=algebra, initialization=initialization, device=self.device)
