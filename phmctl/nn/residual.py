"""The residual connection around a sublayer, with the layer norm before or after it."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Residual(nn.Module):
    """``x + f(norm(x))`` (pre) or ``norm(x + f(x))`` (post), with dropout on f's output.

    Args:
        width: residual width d.
        dropout: on the sublayer's output.
        pre_norm: where the layer norm stands.
        device: where the norm's parameters are allocated.
    """

    def __init__(self, width: int, dropout: float, *, pre_norm: bool, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width, device=device)
        self.dropout = dropout
        self.pre_norm = pre_norm

    def forward(self, x: Tensor, sublayer: Callable[[Tensor], Tensor]) -> Tensor:
        """Apply `sublayer`, a map of (B, T, d) to (B, T, d), to x of that shape."""
        branch = sublayer(self.norm(x) if self.pre_norm else x)
        x = x + F.dropout(branch, self.dropout, self.training)
        return x if self.pre_norm else self.norm(x)
