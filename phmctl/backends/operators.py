"""phmctl's operators as torch sees them: ``torch.ops.phmctl.kronecker_sum`` and ``torch.ops.phmctl.rank_product``.

Each is registered with its shape function, its gradient, a batching rule and a decomposition into torch's own
operations. Compilers, exporters, profilers and sharded training so meet one operation, which runs on any device; an
exporter to a format without it (ONNX) meets the decomposition.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._decomp import register_decomposition
from torch.autograd import forward_ad

ORDINARY = {Tensor, torch.nn.Parameter}  # what a subclass holds (no numbers, a shard, integers) only torch knows
NAMESPACE = "phmctl"
_library = torch.library.Library(NAMESPACE, "DEF")  # type: ignore[no-untyped-call]

Backward = Callable[..., Sequence[Tensor | None] | tuple[Tensor | None, ...]]


def define(
    schema: str,
    run: Callable[..., Any],
    *,
    plain: Callable[..., Any],
    fake: Callable[..., Any],
    backward: Backward | None = None,
    setup: Callable[..., None] | None = None,
) -> Any:
    """Register an operator and return it.

    Args:
        schema: name, arguments and results, in torch's own notation.
        run: computes it, on any device.
        plain: the same in operations that torch has rules for, differentiable as often as one likes.
        fake: gives the shapes, from tensors without numbers.
        backward: (ctx, gradients of the results) -> gradients of the arguments.
        setup: (ctx, inputs, output): saves what `backward` wants.
    """
    name = schema.partition("(")[0]
    qualified = f"{NAMESPACE}::{name}"
    _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
    _library.impl(name, run, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
    torch.library.register_fake(qualified, fake, lib=_library)
    if backward is not None:
        torch.library.register_autograd(qualified, backward, setup_context=setup, lib=_library)

    def batched(info: Any, dimensions: tuple[int | None, ...], *arguments: Any) -> tuple[Any, Any]:
        result = torch.vmap(plain, dimensions)(*arguments)
        return result, 0 if isinstance(result, Tensor) else (0,) * len(result)

    torch.library.register_vmap(qualified, batched, lib=_library)
    operator = getattr(getattr(torch.ops, NAMESPACE), name).default
    register_decomposition([operator])(plain)
    return operator


def autocast_dtype(device_type: str) -> torch.dtype | None:
    """Return the dtype that autocast computes in, None where it is off."""
    if device_type == "meta" or not torch.is_autocast_enabled(device_type):
        return None
    return torch.get_autocast_dtype(device_type)


def compute_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype that products with x are computed in: autocast's where it is on and would take x, else x's."""
    lower = autocast_dtype(x.device.type)
    return x.dtype if lower is None or x.dtype == torch.float64 else lower


def without_autocast(device_type: str) -> AbstractContextManager[object]:
    """Return a scope in which autocast is off; the meta device has none, and torch says so by an error."""
    return nullcontext() if device_type == "meta" else torch.autocast(device_type, enabled=False)


def is_recorded() -> bool:
    """Whether a graph is being made of what is computed, by a compiler, an exporter or ``jit.trace``.

    It must hold for other numbers than those at hand, and for other numbers of tokens.
    """
    return torch.compiler.is_compiling() or torch._C._is_tracing()


def is_transformed() -> bool:
    """Whether torch.func or forward differentiation is at work, or ``jit.trace`` records.

    Operators of our own have no rules for these: they see plain torch operations. Never so for a compiler.
    """
    if is_recorded():
        return not torch.compiler.is_compiling()
    try:
        return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    except AttributeError:  # torch calls them something else by now: take no chances
        return True


def is_watched() -> bool:
    """Whether a ``TorchDispatchMode`` is entered, as a ``FlopCounterMode`` is."""
    return bool(torch._C._len_torch_dispatch_stack())


def _always() -> bool:
    return True  # torch calls it something else by now: take no chances


_is_tracing = getattr(torch._C, "_is_tracing", _always)
_is_autocast = getattr(torch._C, "_is_any_autocast_enabled", _always)
_is_functorch = getattr(torch._C, "_are_functorch_transforms_active", _always)


def is_undisturbed() -> bool:
    """Whether operations are computed as they stand: no autocast, nobody transforms or traces; in 0.2 µs.

    Of compilers it knows nothing: ask :func:`is_recorded` first.
    """
    level = getattr(forward_ad, "_current_level", 0)
    return not (_is_autocast() or _is_tracing() or _is_functorch() or level >= 0)
