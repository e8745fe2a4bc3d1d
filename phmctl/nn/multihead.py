"""``nn.MultiheadAttention`` with PHM projections, for models that are written with torch's own."""

from typing import Any, Self

import torch
from torch import nn

from phmctl.algebra.rules import LEARNED
from phmctl.errors import UserError
from phmctl.nn.kronecker_weight import learn_as, learns
from phmctl.nn.linear import PHMLinear


class PHMMultiheadAttention(nn.MultiheadAttention):
    """``nn.MultiheadAttention`` whose in-projection (3d × d) and out-projection are PHM maps.

    It takes what that takes and gives what that gives: it hands torch's own function the weights H.

    Attributes:
        in_projection: the map of queries, keys and values.
        out_proj: the map behind the heads.
    """

    def __init__(self, embed_dim: int, num_heads: int, *, n: int, algebra: str = LEARNED, **options: Any) -> None:
        """Make the projections.

        Args:
            embed_dim: d.
            num_heads: divides d.
            n: the PHM hyperparameter.
            algebra: ``phm`` or a fixed algebra of dimension n.
            options: of ``nn.MultiheadAttention``; not ``kdim``, ``vdim`` and ``add_bias_kv``.

        Raises:
            UserError: n does not fit, or an option is one of those.
        """
        if any(options.get(name) for name in ("kdim", "vdim", "add_bias_kv")):
            raise UserError("PHM attention has no kdim, no vdim and no add_bias_kv")
        super().__init__(embed_dim, num_heads, **options)
        bias = options.get("bias", True)
        made: dict[str, Any] = {name: options.get(name) for name in ("device", "dtype")}
        for name in ("in_proj_weight", "in_proj_bias"):
            del self._parameters[name]
        self.in_projection = PHMLinear(embed_dim, 3 * embed_dim, bias, n=n, algebra=algebra, splits=3, **made)
        self.out_proj = PHMLinear(embed_dim, embed_dim, bias, n=n, algebra=algebra, **made)  # type: ignore[assignment]

    def __getattr__(self, name: str) -> Any:
        if name in ("in_proj_weight", "in_proj_bias") and "in_projection" in self.__dict__.get("_modules", {}):
            return self.in_projection.weight if name == "in_proj_weight" else self.in_projection.bias
        return super().__getattr__(name)

    @classmethod
    @torch.no_grad()
    def from_dense(cls, attention: nn.MultiheadAttention, n: int, *, algebra: str = LEARNED) -> tuple[Self, float]:
        """Return the nearest one, and the relative error over both weights, ‖W − H‖ / ‖W‖."""
        if attention.bias_k is not None or not attention._qkv_same_embed_dim:
            raise UserError("PHM attention has no kdim, no vdim and no add_bias_kv")
        weight = attention.in_proj_weight
        new = cls(
            attention.embed_dim, attention.num_heads, n=n, algebra=algebra, dropout=attention.dropout,
            bias=attention.in_proj_bias is not None, batch_first=attention.batch_first,
            add_zero_attn=attention.add_zero_attn, device="meta", dtype=weight.dtype,
        ).to_empty(device=weight.device)  # fmt: skip
        pairs = ((new.in_projection, weight), (new.out_proj, attention.out_proj.weight))
        for layer, part in pairs:
            learn_as(layer, part)
        left = sum((layer.set_nearest(part) * part.norm().item()) ** 2 for layer, part in pairs)  # type: ignore[operator]
        whole = sum(part.norm().item() ** 2 for _, part in pairs)
        if attention.in_proj_bias is not None:
            new.in_projection.bias = attention.in_proj_bias
            new.out_proj.bias = attention.out_proj.bias
        return new, (left / whole) ** 0.5 if whole else 0.0

    @torch.no_grad()
    def to_dense(self) -> nn.MultiheadAttention:
        """Return an ``nn.MultiheadAttention`` of the same function, with parameters of its own."""
        weight = self.in_projection.weight
        new = nn.MultiheadAttention(
            self.embed_dim, self.num_heads, dropout=self.dropout, bias=self.in_projection.bias is not None,
            batch_first=self.batch_first, add_zero_attn=self.add_zero_attn, device="meta", dtype=weight.dtype,
        ).to_empty(device=weight.device)  # fmt: skip
        for layer, mine, bias in (
            (self.in_projection, new.in_proj_weight, new.in_proj_bias),
            (self.out_proj, new.out_proj.weight, new.out_proj.bias),
        ):
            mine.copy_(layer.weight).requires_grad_(learns(layer))
            if layer.bias is not None:
                bias.copy_(layer.bias).requires_grad_(layer.bias.requires_grad)
        return new.train(self.training)

    def _reset_parameters(self) -> None:
        """Leave the projections to themselves; torch's constructor draws what is thrown away."""
