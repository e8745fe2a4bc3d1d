"""``phmctl decode``: what a trained run answers to lines of text."""

import gc
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from phmctl.runs import Weights
    from phmctl.tasks.model import Model


def decode(
    run: Path,
    input_: Path | None,
    output: Path | None,
    split: str | None,
    checkpoint: str,
    device: str | None,
    *,
    resume: bool,
    window: int,
    pause: float,
    threads: int,
    workers: int,
    json: bool,
    **given: Any,
) -> None:
    """Translate or label text: one line out for each line in, in order.

    --beam, --alpha, --n-best, --batch-tokens, --precision and --strict are for translators.
    """
    from phmctl.console import note
    from phmctl.devices import set_threads
    from phmctl.errors import UserError
    from phmctl.export.verb import with_engine
    from phmctl.exports import open_model
    from phmctl.inference.answering import answer, load_anew, refuse_same_file, with_workers
    from phmctl.inference.answers_file import AnswersFile
    from phmctl.inference.arriving import arriving_lines, in_groups
    from phmctl.tasks.base import Asked
    from phmctl.tasks.registry import kind_of

    if input_ is not None and split is not None:
        raise UserError("--input and --split exclude each other; leave one out")
    if resume and output is None:
        raise UserError("--resume continues a file; add --output FILE")
    if output is not None and split is None:
        refuse_same_file(input_, output)
    if workers > 1:
        threads = _share(workers, threads)
    set_threads(threads)
    opened = with_engine(open_model(run), given.pop("engine"), checkpoint, given.pop("quantize"), given["precision"])
    kind = kind_of(opened.recipe)
    options = {name: value for name, value in given.items() if value is not None and value is not False}
    kind.require("decode", options)
    own = None if split is None else kind.split_lines(opened, split)

    def load(name: str) -> "tuple[Asked, Model, Weights]":
        asked = Asked(opened, name, device or "auto", options, own_text=own is not None)
        return asked, kind.load(asked), opened.weights(name)

    with starting():
        asked, model, weights = opened.use(checkpoint, load)
    window *= workers
    groups = in_groups(own, window) if own is not None else arriving_lines(input_, pause=pause, limit=window)
    typed = own is None and input_ is None and sys.stdin is not None and sys.stdin.isatty()
    # A person sees the answers themselves, unless they go into a file.
    silent = (output is not None and not json) or _stdout_is_a_file()
    bar = _progress(model.verb, None if own is None else len(own), shown=silent and not typed)
    if typed:
        note("reading lines from the terminal; Ctrl-D ends them")
    origin = {"run": opened.name, "checkpoint": weights.name, "weights": weights.sha256, **model.origin()}
    file = nullcontext() if output is None else AnswersFile(output, origin, resume=resume)
    with file as answers, bar as advance, with_workers(model, partial(load_anew, asked, threads), workers) as predict:
        answer(model, groups, predict=predict, output=answers, as_json=json, advance=advance)


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


def _share(workers: int, threads: int) -> int:
    """Return the threads of each worker; raises UserError for too many workers."""
    from phmctl.sweeps.pool import check_jobs, threads_each

    check_jobs(workers, "--workers")
    return threads_each(workers, threads)


def _progress(verb: str, lines: int | None, *, shown: bool) -> AbstractContextManager[Callable[[int], None]]:
    """Show a bar on a terminal where nothing else would be seen for long; a pipeline's log is left alone."""
    from phmctl.console import progress

    return progress(verb, lines, plain=False) if shown else _nothing()


@contextmanager
def _nothing() -> Iterator[Callable[[int], None]]:
    yield lambda amount: None


def _stdout_is_a_file() -> bool:
    """Whether stdout is redirected to a file, not to a terminal or to a program that prints as it reads."""
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except OSError:
        return False
