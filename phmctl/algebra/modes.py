"""What torch is told to do with operations at the moment: autocast, compilers, tracing, transformations."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.autograd import forward_ad


def needs_plain_operations() -> bool:
    """Whether a compiler, ``jit.trace``, ``torch.func`` or forward differentiation looks at the operations.

    Each has rules for torch's operations and none for our autograd functions.
    """
    return (
        torch.compiler.is_compiling()
        or torch._C._is_tracing()
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that products with x are computed in: autocast's where it is on, else x's."""
    device = x.device.type
    if device == "meta" or x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x.dtype
    return torch.get_autocast_dtype(device)


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a scope without autocast; on the meta device, which has none, a scope that does nothing."""
    return nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False)
