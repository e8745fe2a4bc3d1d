"""The one place that turns an algebra and an n into linear maps and embeddings: every model asks this builder."""

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
        algebra: ``real``, ``complex``, ``quaternion``, ``octonion``, ``sedenion`` or ``phm``; or one of
            :data:`~phmctl.dimension.TWO_FACTORS`, to compare with.
        n: the PHM hyperparameter; a fixed algebra implies it. Of ``monarch`` the blocks.
        rules: how far a learned rule reaches: each map its own (``separate``), one for the maps of a sublayer, or one
            for the whole model.
        bias: whether the maps have biases.
        execution: how they are applied: ``dense`` or ``rank``; None is each map's default.
        parametrization: how a learned rule is held: as A (``rule``) or as its ``factors``.
        rank: of the factors; None is that of a random rule. Of ``low-rank`` its own.
        device: where parameters are allocated; ``meta`` allocates nothing.
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
    _first: PHMLinear | None = field(default=None, init=False)  # whose rule the others share

    def sublayer(self) -> "LinearBuilder":
        """Return the builder for one sublayer's maps: itself, unless each sublayer has a rule of its own."""
        return replace(self) if self.rules == "sublayer" else self

    def map(
        self, in_features: int, out_features: int, *, splits: int = 1, bias: bool | None = None
    ) -> PHMLinear | TwoFactorLinear:
        """Build one map of a Transformer, which may be of two factors too; see :meth:`linear`."""
        if self.algebra not in TWO_FACTORS:
            return self.linear(in_features, out_features, splits=splits, bias=bias)
        inner = cast("int", self.rank) if self.algebra == LOW_RANK else min(in_features, out_features)
        biased = self.bias if bias is None else bias
        return TwoFactorLinear(
            in_features, out_features, blocks=self.n, inner=inner, bias=biased, splits=splits, device=self.device
        )

    def linear(self, in_features: int, out_features: int, *, splits: int = 1, bias: bool | None = None) -> PHMLinear:
        """Build one map; `splits` says how many maps are stacked in it (fused QKV: 3), for the initialisation's fan."""
        learned = self.algebra == LEARNED and self.n > 1
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
            self._first = self._first or layer
            layer.share_rule(self._first)
        return layer

    def embedding(
        self, vocabulary: int, width: int, *, hypercomplex: bool, initialization: str = "embedding"
    ) -> PHMEmbedding:
        """Build an embedding table (vocabulary × width), dense or by this builder's algebra (PHM+).

        The default initialization, N(0, 1/d), is a Transformer's: with the factor √d at the input its states begin at
        unit variance.
        """
        algebra, n = (self.algebra, self.n) if hypercomplex else ("real", 1)
        return PHMEmbedding(vocabulary, width, n=n, algebra=algebra, initialization=initialization, device=self.device)
