"""A quick start for commands that answer."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def starting() -> Iterator[None]:
    """Do without garbage collection while torch and a model are loaded, and leave what was loaded out of it for good.

    Nearly all of that stays to the end of the process, and looking through it again and again is a sixth of the start.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
