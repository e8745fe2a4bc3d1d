"""``decode --workers``: each group of lines parted among several processes, which all have the model.

Two processes of one thread translate faster than one of two: much of a search is no large product. What starts them is
imported where they are wanted: one process has the quicker start without it.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.devices import set_threads
from phmctl.errors import WorkerError

if TYPE_CHECKING:
    from phmctl.runs import Run
    from phmctl.tasks.model import Model

Predict = Callable[..., list[Any]]


@dataclass(frozen=True)
class Loading:
    """What a process needs in order to load a predictor: the run or export, its checkpoint's name, and the options."""

    folder: Path
    checkpoint: str
    device: str
    options: tuple[tuple[str, Any], ...]
    own_text: bool
    threads: int

    def load(self) -> "Model":
        """Load the predictor in a process of its own."""
        from phmctl.exports import open_model

        set_threads(self.threads)
        return self.of(open_model(self.folder))

    def of(self, run: "Run") -> "Model":
        """Load the predictor of the run, which is open."""
        from phmctl.tasks.registry import kind_of

        options = dict(self.options)
        return kind_of(run.recipe).predictor(run, self.checkpoint, self.device, options=options, own_text=self.own_text)


@contextmanager
def with_workers(own: "Model", loading: Loading, count: int) -> Iterator[Predict]:
    """Yield what answers lines as a model's ``predict`` does, with `count` processes, this one counted.

    It does one part of the lines itself and has the others do theirs. The answers are those of the model alone, but for
    rounding: they are computed in other batches. The processes start when they are wanted, and end here. A process that
    ended before it had answered is a WorkerError.
    """
    if count == 1:
        yield own.predict
        return
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    def predict(lines: Sequence[str], *, numbers: Sequence[int], advance: Callable[[int], None]) -> list[Any]:
        places = dealt(lines, count)
        (first, its), *others = (([lines[each] for each in part], [numbers[each] for each in part]) for part in places)
        try:
            waiting = [pool.submit(_predict, loading, *each) for each in others]
            found = dict(zip(places[0], own.predict(first, numbers=its, advance=advance), strict=True))
            for part, future in zip(places[1:], waiting, strict=True):
                found.update(zip(part, future.result(), strict=True))
                advance(len(part))
        except BrokenProcessPool:
            raise WorkerError(
                "a worker was killed before it answered, perhaps for lack of memory; use fewer --workers"
            ) from None
        return [found[place] for place in range(len(lines))]

    with ProcessPoolExecutor(count - 1, get_context("spawn"), _begin) as pool:
        try:
            yield predict
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def dealt(lines: Sequence[str], count: int) -> list[list[int]]:
    """Return the places of the lines for each of at most `count` processes: to each as many of any length.

    Long outputs take more steps, each with fewer sentences, so parts with as many characters may take unlike times.
    """
    order = sorted(range(len(lines)), key=lambda place: -len(lines[place]))
    turns = 2 * count  # who chooses first in a round chooses last in the next
    found = [sorted(order[each::turns] + order[turns - 1 - each :: turns]) for each in range(count)]
    return [part for part in found if part] or [[]]


def _begin() -> None:
    """Leave Ctrl-C to the process that started this one, and end when it does, however that was."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    from multiprocessing import parent_process

    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _predict(loading: Loading, lines: Sequence[str], numbers: Sequence[int]) -> list[Any]:
    return _loaded(loading).predict(lines, numbers=numbers, advance=lambda count: None)


@cache
def _loaded(loading: Loading) -> "Model":
    return loading.load()
