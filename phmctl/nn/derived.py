"""A weight that is computed from other parameters: what says so when it is written into, and a layer made of it."""

from collections.abc import Callable, Iterator
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
_FOREIGN = ("numpy", "__array__", "__dlpack__")  # give its memory to what knows nothing of this


class DerivedWeightError(UserError, RuntimeError):
    """Somebody writes into a weight that is made of other parameters; it would be lost."""


class Derived(Tensor):
    """H, as ``layer.weight`` gives it: a tensor like any other, but for what would write into it.

    ``nn.init.zeros_(layer.weight)``, ``layer.weight.data.mul_(2)``, ``layer.weight[0] = 1`` and
    ``layer.weight.requires_grad_(False)`` change a parameter of ``nn.Linear``. Here they would change a result and
    nothing else, so they raise :class:`DerivedWeightError`. What is computed from it is an ordinary tensor; an array of
    it is a copy.
    """

    def __iter__(self) -> Iterator[Tensor]:
        """Iterate over its rows."""
        return iter(self.unbind())  # torch's own would take them past what follows

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Call a function of torch on ordinary tensors, unless it writes."""
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        writes = name in _WRITES or (name.endswith("_") and not name.endswith("__")) or kwargs.get("inplace")
        of_ours = _holds_derived(args[0] if args else [kwargs.get(key) for key in ("input", "self", "tensor")])
        if (writes and of_ours) or _holds_derived(kwargs.get("out")):
            raise DerivedWeightError(
                f"{name} would write into layer.weight, which is made of A and S and keeps nothing; change those, "
                "or call layer.to_dense() for a weight of its own"
            )
        with torch._C.DisableTorchFunctionSubclass():
            if of_ours and name in _FOREIGN:
                args = (args[0].clone(), *args[1:])
            result = func(*args, **kwargs)
            if of_ours and type(result) in (tuple, list):
                return type(result)(_guarded(part, name) for part in result)
            return _guarded(result, name) if of_ours else result


def _holds_derived(value: object) -> bool:
    """Whether a value, or a part of a sequence, is a derived weight."""
    return any(isinstance(part, Derived) for part in (value if isinstance(value, tuple | list) else (value,)))


def _guarded(result: Any, name: str) -> Any:
    """Return what a function gave of a derived weight; writing into a part of the weight is writing into it."""
    if type(result) is Tensor and (result._is_view() or name in _ALIASES):
        return result.as_subclass(Derived)
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
