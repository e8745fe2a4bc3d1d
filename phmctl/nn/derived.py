"""A weight that is computed from other parameters: what says so when it is written into, and a layer made of it."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.backends.operators import is_recorded
from phmctl.errors import UserError

_WRITES = (
    "__setitem__",
    "__set__",
    "__iadd__",
    "__isub__",
    "__imul__",
    "__itruediv__",
    "__ipow__",
    "__iand__",
    "__ior__",
)
_ALIASES = ("__get__", "detach")  # .data and the like


class DerivedWeightError(UserError, RuntimeError):
    """Somebody writes into a weight that is made of other parameters; it would be lost."""


class Derived(Tensor):
    """H, as ``layer.weight`` gives it: a tensor like any other, but for what would write into it.

    ``nn.init.zeros_(layer.weight)``, ``layer.weight.data.mul_(2)``, ``layer.weight[0] = 1`` and
    ``layer.weight.requires_grad_(False)`` change a parameter of ``nn.Linear``. Here they would change a result and
    nothing else, so they raise :class:`DerivedWeightError`. What is computed from it is an ordinary tensor.
    """

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch on ordinary tensors, unless it writes."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        writes = name in _WRITES or (name.endswith("_") and not name.endswith("__"))
        target = args[0] if args else kwargs.get("tensor")
        if (writes and isinstance(target, cls)) or isinstance(kwargs.get("out"), cls):
            raise DerivedWeightError(
                f"{name} would write into layer.weight, which is made of A and S and keeps nothing; change those, "
                "or call layer.to_dense() for a weight of its own"
            )
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **kwargs)
            if type(result) is Tensor and (result._is_view() or name in _ALIASES) and isinstance(target, cls):
                return result.as_subclass(cls)  # writing into a part of it is writing into it
            return result


def as_derived(weight: Tensor) -> Tensor:
    """Return a weight as what must not be written into. A compiler sees it as it is."""
    return weight if is_recorded() else weight.as_subclass(Derived)


@torch.no_grad()
def as_linear(weight: Tensor, bias: Tensor | None, *, training: bool) -> nn.Linear:
    """Return an ``nn.Linear`` with copies of a weight (k, d) and a bias (k,). No random numbers are drawn."""
    k, d = weight.shape
    dense = nn.Linear(d, k, bias is not None, "meta", weight.dtype).to_empty(device=weight.device).train(training)
    dense.weight.copy_(weight)
    if bias is not None:
        dense.bias.copy_(bias)
    return dense
