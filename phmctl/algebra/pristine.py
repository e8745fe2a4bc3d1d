"""Constants that are computed once a process, whatever torch is told to do at that moment."""

from collections.abc import Callable
from functools import lru_cache, wraps
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")


def computed_once(function: Callable[P, T]) -> Callable[P, T]:
    """Cache a function of hashable arguments, and compute each value as in a process that has just begun.

    ``torch.device("meta")``, a ``FakeTensorMode``, inference mode and autocast belong to a thread. A value that were
    computed under one of them would be a tensor without numbers, or without gradients, for everyone after; so values
    are computed in a thread of their own.
    """

    @lru_cache
    def value(*args: P.args, **kwargs: P.kwargs) -> T:
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

    @wraps(function)
    def cached(*args: P.args, **kwargs: P.kwargs) -> T:
        return value(*args, **kwargs)  # type: ignore[arg-type]

    cached.cache_clear = value.cache_clear  # type: ignore[attr-defined]
    return cached
