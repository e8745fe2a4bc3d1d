"""Pooling: one vector for a sequence of states, with padding left out."""

from collections.abc import Callable

import torch
from torch import Tensor

from phmctl.errors import DimensionError


def max_pool(states: Tensor, mask: Tensor) -> Tensor:
    """Return each feature's largest value over time, (B, T, d) -> (B, d).

    Args:
        states: (B, T, d). What stands at padding is never read, not even NaN, and gets a gradient of zero.
        mask: (B, T) bool, true where a token stands.

    Returns:
        (B, d). A sequence without tokens gives zeros, so that no infinity reaches the layers behind; the same holds
        for the other poolings. Where several steps share the largest value, they share its gradient.

    Raises:
        DimensionError: the shapes do not belong together, or there is no step.
    """
    _check(states, mask)
    largest = states.masked_fill(~mask[..., None], -torch.inf).amax(1)  # (B, d)
    return largest.masked_fill(~mask.any(1, keepdim=True), 0.0)


def mean_pool(states: Tensor, mask: Tensor) -> Tensor:
    """Return each feature's mean over the tokens, (B, T, d) -> (B, d). See :func:`max_pool` for the rest."""
    _check(states, mask)
    total = states.masked_fill(~mask[..., None], 0.0).sum(1)  # (B, d)
    return total / mask.sum(1, keepdim=True).clamp(min=1)


def last_pool(states: Tensor, mask: Tensor) -> Tensor:
    """Return the state at each sequence's last token, (B, T, d) -> (B, d). See :func:`max_pool` for the rest."""
    _check(states, mask)
    steps = torch.arange(mask.shape[1], device=mask.device)  # (T,)
    last = (mask * steps).amax(1)  # (B,)
    rows = torch.arange(len(mask), device=mask.device)  # (B,)
    return states[rows, last].masked_fill(~mask.any(1, keepdim=True), 0.0)  # (B, d)


POOLINGS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"max": max_pool, "mean": mean_pool, "last": last_pool}


def _check(states: Tensor, mask: Tensor) -> None:
    if states.dim() != 3 or states.shape[:2] != mask.shape:
        raise DimensionError(f"states {tuple(states.shape)} and mask {tuple(mask.shape)} are not (B, T, d) and (B, T)")
    if mask.shape[1] == 0:
        raise DimensionError("there is no step to pool over; give at least one, padding or not")
