"""Work that is done as in a process that has just begun, whatever torch is told to do at that moment.

``torch.device("meta")``, a ``FakeTensorMode``, inference mode, autocast and hooks on saved tensors belong to a thread.
So what must not see them runs in a thread of its own where there are any.
"""

from collections.abc import Callable
from contextvars import Context
from functools import lru_cache, wraps
from threading import Thread
from typing import Any, ParamSpec, TypeVar

import torch

from phmctl.backends.operators import is_recorded, is_undisturbed, is_watched

P = ParamSpec("P")
T = TypeVar("T")


def undisturbed(function: Callable[P, T]) -> Callable[P, T]:
    """Run each call of a function as in a thread of its own, in one where the caller's has modes that it could see.

    Where nothing is to be hidden the caller's does better: another one has workers of its own for what computes on
    several threads, and wakes them for each product: that is most of what a short call takes there.
    """

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if _is_clear():
            with torch.inference_mode(False), torch.enable_grad():
                return Context().run(function, *args, **kwargs)
        done: list[T] = []
        failed: list[BaseException] = []

        def work() -> None:
            try:
                done.append(function(*args, **kwargs))
            except BaseException as error:  # raised again where it was asked for
                failed.append(error)

        thread = Thread(target=work)
        thread.start()
        thread.join()
        if failed:
            raise failed[0]
        return done[0]

    return call


def _is_clear() -> bool:
    """Whether this thread has no modes but those of gradients; False where torch calls them something else by now."""
    try:
        modes = torch._C._len_torch_function_stack() or is_watched()
        hooks: Any = torch._C._autograd._top_saved_tensors_default_hooks(True)
    except (AttributeError, TypeError):
        return False
    return not (is_recorded() or modes or hooks) and is_undisturbed()


def computed_once(function: Callable[P, T]) -> Callable[P, T]:
    """Cache a function of hashable arguments, and compute each value as in a process that has just begun.

    A value that were computed under a mode would be a tensor without numbers, or without gradients, for everyone after.
    """
    value = lru_cache(undisturbed(function))

    @wraps(function)
    def cached(*args: P.args, **kwargs: P.kwargs) -> T:
        return value(*args, **kwargs)  # type: ignore[arg-type]

    cached.cache_clear = value.cache_clear  # type: ignore[attr-defined]
    return cached
