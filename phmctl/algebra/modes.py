"""Queries of torch's current state: autocast, compilers, tracing, function transforms."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad


def needs_plain_operations() -> bool:
    """Return whether a compiler, ``jit.trace``, ``torch.func`` or forward-mode differentiation is active.

    These support torch's operations but not our ``autograd.Function`` classes.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with x: autocast's dtype if autocast is enabled, otherwise x's."""
    device = x.device.type
    if device == "meta" or x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x.dtype
    return torch.get_autocast_dtype(device)


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a context that disables autocast, or does nothing on the meta device, which does not support it."""
    return nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False)
