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
    from concurrent.futures import ProcessPoolExecutor

    from phmctl.runs import Run
    from phmctl.tasks.base import Predictor


@dataclass(frozen=True)
class Loading:
    """What a process needs in order to load a predictor: the run or export, its checkpoint's name, and the options."""

    folder: Path
    checkpoint: str
    device: str
    options: tuple[tuple[str, Any], ...]
    own_text: bool
    threads: int

    def load(self) -> "Predictor":
        """Load the predictor in a process of its own."""
        from phmctl.exports import open_model

        set_threads(self.threads)
        return self.of(open_model(self.folder))

    def of(self, run: "Run") -> "Predictor":
        """Load the predictor of the run, which is open."""
        from phmctl.tasks.registry import kind_of

        options = dict(self.options)
        return kind_of(run.recipe).predictor(run, self.checkpoint, self.device, options=options, own_text=self.own_text)


class WithWorkers:
    """A predictor that does one part of each group itself and has its workers do the others.

    Its answers are those of the predictor alone, but for rounding: they are computed in other batches.

    Args:
        own: this process's.
        pool: the others.
        loading: how they load theirs.
        count: processes, with this one.
    """

    def __init__(self, own: "Predictor", pool: "ProcessPoolExecutor", loading: Loading, count: int) -> None:
        self.own, self.pool, self.loading, self.count = own, pool, loading, count
        self.verb, self.about, self.origin = own.verb, own.about, own.origin
        self.lines, self.as_json = own.lines, own.as_json

    def predict(
        self, lines: Sequence[str], *, numbers: Sequence[int] | None = None, advance: Callable[[int], None]
    ) -> list[Any]:
        """Return the answer to each line.

        Raises:
            WorkerError: a process ended before it had answered.
        """
        from concurrent.futures.process import BrokenProcessPool

        numbers = numbers or range(1, len(lines) + 1)
        places = dealt(lines, self.count)
        (first, its), *others = (([lines[each] for each in part], [numbers[each] for each in part]) for part in places)
        try:
            waiting = [self.pool.submit(_predict, self.loading, *each) for each in others]
            found = dict(zip(places[0], self.own.predict(first, numbers=its, advance=advance), strict=True))
            for part, future in zip(places[1:], waiting, strict=True):
                found.update(zip(part, future.result(), strict=True))
                advance(len(part))
        except BrokenProcessPool:
            raise WorkerError(
                "a worker was killed before it answered, perhaps for lack of memory; use fewer --workers"
            ) from None
        return [found[place] for place in range(len(lines))]


@contextmanager
def with_workers(own: "Predictor", loading: Loading, count: int) -> Iterator["Predictor"]:
    """Yield a predictor that has `count` processes, this one counted; they start when they are wanted, and end here."""
    if count == 1:
        yield own
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    with ProcessPoolExecutor(count - 1, get_context("spawn"), _begin) as pool:
        try:
            yield WithWorkers(own, pool, loading, count)
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
def _loaded(loading: Loading) -> "Predictor":
    return loading.load()
