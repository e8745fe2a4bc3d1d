"""Queries of torch's current state (autocast, compilers, tracing, function transforms), and functions to compile."""

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from phmctl.errors import lack_of_memory

T = TypeVar("T")
_compiled: dict[Callable[..., Any], Callable[..., Any]] = {}  # the function itself if it could not be compiled


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


def fused(function: Callable[..., T], device: torch.device, *arguments: Any) -> T:
    """Call a function of tensors, compiled on CUDA and eager elsewhere. If compiling it fails, warn and stay eager."""
    if device.type != "cuda":
        return function(*arguments)
    if function not in _compiled:
        _compiled[function] = torch.compile(function)
    compiled: Callable[..., T] = _compiled[function]
    try:
        return compiled(*arguments)
    except RuntimeError as error:  # the compilers' errors have no narrower common type
        if compiled is function or lack_of_memory(error) is not None:
            raise
        reason = str(error).strip().splitlines()[0]
        warnings.warn(f"torch.compile failed ({reason}); training continues without it", RuntimeWarning, stacklevel=2)
        _compiled[function] = function
        return function(*arguments)
