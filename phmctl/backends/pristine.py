"""Work that is done as in a process that has just begun, whatever torch is told to do at that moment.

``torch.device("meta")``, a ``FakeTensorMode``, inference mode, autocast and hooks on saved tensors belong to a thread.
So what must not see them runs in a thread of its own.
"""

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def undisturbed(function: Callable[P, T]) -> Callable[P, T]:
    """Run each call of a function in a thread of its own, and wait for it."""

    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
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
