"""The scope in which what is built from parameters is kept: ``with phmctl.cached():``.

As with ``torch.nn.utils.parametrize.cached()`` nothing is guessed: outside a scope H is built at every use and is never
stale; inside one it is built once, and a change that is written *into* a parameter there is not seen.
"""

from contextlib import ContextDecorator
from contextvars import ContextVar, copy_context
from threading import Lock
from typing import Any, Self
from weakref import WeakKeyDictionary

from torch import nn

_entered: ContextVar[tuple["cached", ...]] = ContextVar("entered", default=())  # the outermost first


class cached(ContextDecorator):  # noqa: N801  # a context manager, named as torch's own is
    """A scope in which H, or the blocks of a rank product, are built once a layer.

    ::

        with phmctl.cached(), torch.inference_mode():
            for batch in batches:
                model(batch)

    Nothing is kept where a gradient is wanted. A new parameter in an old one's place, another dtype or device, and
    autocast's dtype are seen; what is written into a parameter while the scope is open is not, until it is left.

    ``@phmctl.cached()`` gives each call of a function a scope of its own. A scope belongs to the thread (the
    ``contextvars`` context) that enters it. One object may be entered by many threads at once, and then serves all of
    them; it is emptied when the last has left. So a server makes one, enters it for as long as it answers, and again in
    each thread that answers. A scope inside another is a part of it.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        self._inside = 0
        self._values: WeakKeyDictionary[nn.Module, dict[Any, Any]] = WeakKeyDictionary()

    def __enter__(self) -> Self:
        with self._lock:
            self._inside += 1
        _entered.set((*_entered.get(), self))
        return self

    def __exit__(self, *_: object) -> None:
        entered = list(_entered.get())
        if self in entered:
            entered.remove(self)
            _entered.set(tuple(entered))
        with self._lock:
            self._inside -= 1
            if not self._inside:
                self._values = WeakKeyDictionary()  # another one: a straggler writes into the old

    def _recreate_cm(self) -> Self:
        return type(self)()  # as a decorator: a scope for each call

    def values_of(self, module: nn.Module) -> dict[Any, Any]:
        """Return what this scope holds of a module, to read and to write."""
        values = self._values
        held = values.get(module)
        if held is None:
            with self._lock:
                held = values.setdefault(module, {})
        return held

    def hold(self) -> None:
        """Stay open for as long as this object lives, for weights that do not change; no thread enters by it."""
        copy_context().run(self.__enter__)

    @property
    def is_open(self) -> bool:
        """Whether somebody is inside."""
        return self._inside > 0


def values_of(module: nn.Module) -> dict[Any, Any] | None:
    """Return what the scope that this thread is in holds of a module; None outside any scope."""
    for scope in _entered.get():
        if scope.is_open:  # a context may have been copied from one that has been left since
            return scope.values_of(module)
    return None
