"""Sinusoidal positions (Vaswani et al. 2017, §3.5)."""

import math
from collections.abc import Callable
from typing import Self

import torch
from torch import Tensor, nn


def sinusoids(length: int, width: int) -> Tensor:
    """Return the table of sinusoids, (length, width) float32.

    Sines stand in the first half of the columns, cosines in the second (as in Tensor2Tensor), instead of alternating:
    a fixed permutation of the features.
    """
    half = width // 2
    rates = torch.exp(torch.arange(half) * (-math.log(10_000.0) / max(half - 1, 1)))  # (half,)
    angles = torch.arange(length)[:, None] * rates  # (length, half)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


class SinusoidalPositions(nn.Module):
    """Adds sinusoidal positions; the table grows when a longer sentence comes.

    Args:
        width: the residual width d, even.
        device: where the table lies.
    """

    table: Tensor

    def __init__(self, width: int, device: torch.device | str | None = None) -> None:
        super().__init__()
        self.width = width
        self.register_buffer("table", sinusoids(512, width).to(device), persistent=False)

    def forward(self, length: int, start: int = 0) -> Tensor:
        """Return rows `start` to `start + length` of the table, (length, d)."""
        stop, table = start + length, self.table
        if stop > table.shape[0]:
            self.table = table = sinusoids(2 * stop, self.width).to(table)  # another thread may set a shorter one
        return table[start:stop]

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self.table = sinusoids(len(self.table), self.width).to(self.table)  # to_empty() leaves it undefined
        return self
