"""The scope in which what is built from parameters is kept: ``with phmctl.cached():``.

As with ``torch.nn.utils.parametrize.cached()`` nothing is guessed: outside a scope H is built at every use and is never
stale; inside one it is built once, and a change that is written *into* a parameter there is not seen.
"""

from collections.abc import Callable
from contextlib import ContextDecorator
from contextvars import ContextVar, copy_context
from threading import Lock
from typing import Any, Self
from weakref import ref

import torch
from torch import Tensor, is_grad_enabled, nn
from torch.compiler import is_compiling

from phmctl.backends.operators import is_undisturbed
from phmctl.errors import UserError

Call = Callable[[Tensor], Tensor]
_entered: ContextVar[tuple["cached", ...]] = ContextVar("entered", default=())  # the outermost first


class Held(dict[Any, Any]):
    """What a scope holds of one module.

    Attributes:
        calls: what the module is applied by, by the numbers in its input: for calls that take microseconds.
        state: of the module that these are for.
        dtype: of the scope.
    """

    __slots__ = ("calls", "dtype", "module", "state")

    def __init__(self, module: nn.Module, others: "dict[int, Held]", dtype: torch.dtype | None) -> None:
        super().__init__()
        self.dtype = dtype
        self.calls: dict[int, Call] = {}
        self.state: list[int] = []
        key = id(module)
        self.module = ref(module, lambda _: others.pop(key, None))  # before another object gets its id


class cached(ContextDecorator):  # noqa: N801  # a context manager, named as torch's own is
    """A scope in which H, or the blocks of a rank product, are built once a layer.

    ::

        with phmctl.cached(), torch.inference_mode():
            for batch in batches:
                model(batch)

    Nothing is kept where a gradient is wanted, nor by a scope inside a function that is compiled. A new parameter in an
    old one's place, another dtype or device, and autocast's dtype are seen; what is written into a parameter while the
    scope is open is not, until it is left.

    ``@phmctl.cached()`` gives each call of a function a scope of its own. A scope belongs to the thread (the
    ``contextvars`` context) that enters it. One object may be entered by many threads at once, and then serves all of
    them; it is emptied when the last has left. So a server makes one, enters it for as long as it answers, and again in
    each thread that answers. A scope inside another is a part of it.

    Args:
        dtype: keep weights in this one, as ``bfloat16``, and multiply by them in it, where float32 would take more than
            microseconds: on a processor that has it the products take half the time. Inputs and results stay float32.
            Not an LSTM's weights, nor those of maps whose execution is `factored` or `rank`. Of scopes inside one
            another the outermost one's counts.

    Raises:
        UserError: the dtype is not one of floating point numbers.
    """

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        if dtype is not None and not (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
            raise UserError(f"cached({dtype!r}): want a dtype of floating point numbers, for example torch.bfloat16")
        self.dtype = dtype
        self._inside = 0
        self.held: dict[int, Held] = {}  # by the module's id
        if not is_compiling():  # inside what is compiled a scope does nothing
            self._lock = Lock()

    def __enter__(self) -> Self:
        if is_compiling():
            return self
        with self._lock:
            self._inside += 1
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        if is_compiling():
            return
        entered = list(_entered.get())
        if self in entered:
            entered.remove(self)
            _entered.set(tuple(entered))
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self.held = {}  # another one: a straggler writes into the old

    def _recreate_cm(self) -> Self:
        return type(self)(self.dtype)  # as a decorator: a scope for each call

    def values_of(self, module: nn.Module) -> Held:
        """Return what this scope holds of a module, to read and to write."""
        every = self.held
        held = every.get(id(module))
        if held is None:
            with self._lock:
                held = every.setdefault(id(module), Held(module, every, self.dtype))
        return held

    def hold(self) -> None:
        """Stay open for as long as this object lives, for weights that do not change; no thread enters by it."""
        copy_context().run(self.__enter__)

    @property
    def is_open(self) -> bool:
        """Whether somebody is inside."""
        return self._inside > 0


def values_of(module: nn.Module) -> Held | None:
    """Return what the scope that this thread is in holds of a module; None outside any scope."""
    for scope in _entered.get():
        if scope.is_open:  # a context may have been copied from one that has been left since
            return scope.values_of(module)
    return None


def call_at_hand(module: nn.Module, x: Tensor) -> Call | None:
    """Return what this thread's scope applies a module to such an input by, None if nothing yet; in half a µs."""
    entered = _entered.get()
    held = entered[0].held.get(id(module)) if entered else None  # one that was left holds nothing
    if held is None or type(x) is not Tensor or is_grad_enabled() or not is_undisturbed():
        return None
    if held.state != state_of(module):
        return None
    return held.calls.get(x.numel())


def keep_call(module: nn.Module, x: Tensor, call: Call) -> None:
    """Have the scope apply a module to such inputs by a call, until a parameter or a buffer is another object."""
    held = values_of(module)
    if held is None or type(x) is not Tensor or is_grad_enabled() or not is_undisturbed():
        return
    state = state_of(module)
    if held.state != state:
        held.calls, held.state = {}, state
    held.calls[x.numel()] = call


def state_of(module: nn.Module) -> list[int]:
    """Return what differs once a module is applied by other tensors; ``changes`` counts what these do not tell."""
    state: list[int] = [module.changes, *map(id, module._parameters.values())]  # type: ignore[list-item]
    return [*state, *map(id, module._buffers.values())] if module._buffers else state
