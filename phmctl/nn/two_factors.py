"""What people take in place of a PHM map at the same cost: two thin maps in a row, to compare with.

``low-rank`` is W = BA through r numbers. ``monarch`` is two block-diagonal matrices with a permutation between them,
through as many numbers as the smaller side has (Dao et al. 2022, "Monarch: Expressive Structured Matrices for
Efficient and Accurate Training", §3.1; for oblong maps as in its appendix).
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phmctl.algebra.initialisation import dense_variance
from phmctl.algebra.modes import full_precision
from phmctl.dimension import check_divides
from phmctl.nn.linear import as_linear


class TwoFactorLinear(nn.Module):
    """``y = L P R x + b``: R and L block-diagonal with N blocks each, P interleaves the blocks. One block: low rank.

    Parameters: m (d + k) / N, and k of the bias.

    Attributes:
        R: (N, m/N, d/N), applied first.
        L: (N, k/N, m/N).
        bias: (k,) or None.

    Args:
        in_features: d.
        out_features: k.
        blocks: N; it divides d, k and m.
        inner: m, the width between the factors.
        bias: add a learned b; it begins at zero.
        splits: how many maps are stacked in this one (3 for fused Q, K, V): the fan-out is k/splits.
        device: of the parameters.

    Raises:
        DimensionError: N does not divide a dimension.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        blocks: int,
        inner: int,
        bias: bool = True,
        splits: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_divides(blocks, in_features=in_features, out_features=out_features, inner=inner)
        self.in_features, self.out_features, self.blocks, self.inner = in_features, out_features, blocks, inner
        self.R = nn.Parameter(torch.empty(blocks, inner // blocks, in_features // blocks, device=device))
        self.L = nn.Parameter(torch.empty(blocks, out_features // blocks, inner // blocks, device=device))
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_features, device=device)) if bias else None)
        self._draw(dense_variance("xavier_uniform", in_features, out_features // splits))

    @torch.no_grad()
    def _draw(self, variance: float) -> None:
        """Let the outputs have the variance that a dense map gives them whose entries have this one."""
        for factor, own in ((self.R, 1 / self.R.shape[2]), (self.L, variance * self.in_features / self.L.shape[2])):
            factor.uniform_(-math.sqrt(3 * own), math.sqrt(3 * own))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis. (..., d) -> (..., k)."""
        if self.blocks == 1:
            return F.linear(F.linear(x, self.R[0]), self.L[0], self.bias)
        N, flat = self.blocks, x.reshape(-1, self.in_features)  # (T, d)
        h = flat.view(-1, N, self.R.shape[2]).transpose(0, 1) @ self.R.mT  # (N, T, m/N)
        h = h.permute(1, 2, 0).reshape(-1, N, self.L.shape[2])  # (T, N, m/N): number j of block i to place jN + i
        y = (h.transpose(0, 1) @ self.L.mT).transpose(0, 1).reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)  # autocast's, as of a dense map

    @property
    def weight(self) -> Tensor:
        """The matrix that it is, (k, d)."""
        dense: Tensor = self(torch.eye(self.in_features, device=self.R.device, dtype=self.R.dtype))  # (d, k)
        return (dense if self.bias is None else dense - self.bias).T

    @full_precision
    @torch.no_grad()
    def to_dense(self) -> nn.Linear:
        """Return an ``nn.Linear`` of the same function, to rounding, with parameters of its own."""
        return as_linear(self.weight, self.bias, training=self.training)

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, blocks={self.blocks}, "
            f"inner={self.inner}, bias={self.bias is not None}"
        )
