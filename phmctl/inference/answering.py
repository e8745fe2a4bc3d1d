"""``decode``: what a model answers to lines of text as they come, by one process or several.

With several each group of lines is parted among processes which all have the model: two of one thread translate faster
than one of two, for much of a search is no large product. What starts them is imported where they are wanted: one
process has the quicker start without it.
"""

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import emit, json_text, warn
from phmctl.devices import set_threads
from phmctl.errors import OutputError, WorkerError
from phmctl.inference.answers_file import AnswersFile
from phmctl.metrics.degenerate import Degenerate

if TYPE_CHECKING:
    from phmctl.tasks.base import Asked
    from phmctl.tasks.model import Model

Predict = Callable[..., list[Any]]
_LOADERS: list[Callable[[], "Model"]] = []  # of a worker: how it loads its model


def answer(
    model: "Model",
    groups: Iterable[Sequence[str]],
    *,
    predict: Predict | None = None,
    output: AnswersFile | None = None,
    as_json: bool = False,
    advance: Callable[[int], None] = lambda count: None,
) -> None:
    """Answer groups of lines as they come: into a file, on stdout, or both. What is wrong with all of them is said.

    `predict` answers lines, if not the model alone does. What `output` has already answered is passed over; without it
    the answers go to stdout. `as_json` prints a JSON object a line of input: ``line``, its number, and what the task
    answers. `advance` is told how many lines are done. OutputError: the file or stdout cannot be written, or the file
    answers other lines.
    """
    number = 1 + (output.lines if output else 0)
    counted = Degenerate()
    advance(number - 1)
    for group in groups if output is None else output.unanswered(groups):
        found = (predict or model.predict)(group, numbers=range(number, number + len(group)), advance=advance)
        answers = list(model.lines(found, first_line=number))
        text = "".join(f"{line}\n" for line in answers)
        if len(answers) == len(group):
            counted.add(group, answers)
        if output is not None:
            output.add(group, text)
        if as_json:
            objects = ({"line": place, **each} for place, each in enumerate(model.as_json(found), start=number))
            emit("".join(f"{json_text(each)}\n" for each in objects))
        elif output is None:
            emit(text)
        number += len(group)
    if output is not None:
        output.finish()
    for remark in counted.remarks():
        warn(remark)


def refuse_same_file(source: Path | None, output: Path) -> None:
    """Refuse (OutputError) to write over the text that is read; None is stdin."""
    try:
        read = os.fstat(sys.stdin.fileno()) if source is None else source.stat()
        same = output.is_file() and os.path.samestat(read, output.stat())
    except (OSError, ValueError, AttributeError):  # no such file, or a stdin that is none
        return
    if same:
        raise OutputError(f"{output} is the text that is read; name another file for the answers")


@contextmanager
def with_workers(own: "Model", load: Callable[[], "Model"], count: int) -> Iterator[Predict]:
    """Yield what answers lines as a model's ``predict`` does, with `count` processes, this one counted.

    The others `load` the model for themselves. The answers are those of the model alone, but for rounding: they are
    computed in other batches. The processes start when they are wanted, and end here. A process that ended before it
    had answered is a WorkerError.
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
            waiting = [pool.submit(_predict, *each) for each in others]
            found = dict(zip(places[0], own.predict(first, numbers=its, advance=advance), strict=True))
            for part, future in zip(places[1:], waiting, strict=True):
                found.update(zip(part, future.result(), strict=True))
                advance(len(part))
        except BrokenProcessPool:
            raise WorkerError(
                "a worker was killed before it answered, perhaps for lack of memory; use fewer --workers"
            ) from None
        return [found[place] for place in range(len(lines))]

    with ProcessPoolExecutor(count - 1, get_context("spawn"), _begin, (load,)) as pool:
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


def load_anew(asked: "Asked", threads: int) -> "Model":
    """Load a model in a process of its own."""
    from phmctl.tasks.registry import kind_of

    set_threads(threads)
    return kind_of(asked.run.recipe).load(asked)


def _begin(load: Callable[[], "Model"]) -> None:
    """Leave Ctrl-C to the process that started this one, and end when it does, however that was."""
    from multiprocessing import parent_process

    def end_with_parent() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            os._exit(1)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=end_with_parent, daemon=True).start()
    _LOADERS.append(load)


def _predict(lines: Sequence[str], numbers: Sequence[int]) -> list[Any]:
    return _loaded().predict(lines, numbers=numbers, advance=lambda count: None)


@cache
def _loaded() -> "Model":
    return _LOADERS[0]()
