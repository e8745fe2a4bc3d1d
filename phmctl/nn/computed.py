"""A weight that is computed at every use refuses to be written into, because the change would be lost."""

from typing import Any, NoReturn

import torch
from torch import Tensor

from phmctl.algebra.modes import needs_plain_operations
from phmctl.errors import UserError

_HARMLESS = {"requires_grad_", "detach_", "share_memory_"}  # change no value
_OPERATORS = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}


class ComputedWeight(Tensor):
    """H as ``layer.weight`` returns it: every operation takes it as a plain tensor and returns plain tensors.

    Writing into it or into its ``data``, as merging LoRA does, raises UserError.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @property
    def data(self) -> Tensor:
        """The values without their graph."""
        return Tensor.data.__get__(self).as_subclass(ComputedWeight)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, value: Tensor) -> NoReturn:
        refuse_write()

    def detach(self) -> Tensor:
        """Return a plain tensor without the graph."""
        # nn.Parameter(H) takes the detached tensor of H and requires that it has H's class.
        self.__class__ = Tensor  # type: ignore[assignment]
        return Tensor.detach(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.as_subclass(Tensor).__deepcopy__(memo)  # type: ignore[no-untyped-call, no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def refuse_write(*_: object, **__: object) -> NoReturn:
    """Raise UserError."""
    raise UserError(
        "this weight is computed from A and S at every use, so that a change of it would be lost; change A and S, or"
        " call phmctl.to_dense(model) first, for example before LoRA is merged"
    )


for _name in dir(Tensor):  # the methods that write in place
    if _name in _OPERATORS | {"__setitem__"} or (_name.endswith("_") and _name[0] != "_" and _name not in _HARMLESS):
        setattr(ComputedWeight, _name, refuse_write)


def computed(weight: Tensor) -> Tensor:
    """Return a computed weight as a tensor that refuses writes; compilers and other modes get it as it is."""
    if type(weight) is not Tensor or needs_plain_operations() or torch._C._len_torch_dispatch_stack():
        return weight
    return weight.as_subclass(ComputedWeight)
