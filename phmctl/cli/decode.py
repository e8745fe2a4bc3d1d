"""``phmctl decode``: what a trained run answers to lines of text."""

import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phmctl.cli.options import Checkpoint, Device, Engine, Execution, ModelArgument, Precision, Quantize, Threads
from phmctl.cli.starting import starting

if TYPE_CHECKING:
    from phmctl.runs import Weights
    from phmctl.tasks.model import Model

Beam = Annotated[int | None, typer.Option(help="Beam size; 1 is greedy. Default: the recipe's.")]
Alpha = Annotated[float | None, typer.Option(help="Exponent of the length penalty. Default: the recipe's.")]
BatchTokens = Annotated[int | None, typer.Option(help="Number of source tokens in a batch, padding included.")]


def decode(
    run: ModelArgument,
    input_: Annotated[
        Path | None, typer.Option("--input", help="Text file with one sentence in each line (default: stdin).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Append the answers to this file as they come (default: stdout).")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue an incomplete --output; begin it if there is none.")
    ] = False,
    split: Annotated[str | None, typer.Option(help="Decode this split of the run's own text: test or valid.")] = None,
    checkpoint: Checkpoint = "auto",
    beam: Beam = None,
    alpha: Alpha = None,
    n_best: Annotated[
        int | None,
        typer.Option(help="Number of hypotheses to print for each line: its number, rank, score, text.", min=1),
    ] = None,
    batch_tokens: BatchTokens = None,
    execution: Execution = None,
    precision: Precision = None,
    engine: Engine = None,
    quantize: Quantize = None,
    window: Annotated[int, typer.Option(help="Largest number of lines that a worker answers together.", min=1)] = 1024,
    pause: Annotated[
        float, typer.Option(help="Seconds without a new line after which waiting lines are answered.", min=0)
    ] = 0.05,
    device: Device = None,
    threads: Threads = 0,
    workers: Annotated[
        int, typer.Option(min=1, help="Number of processes that answer at once; they share the threads.")
    ] = 1,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse over-long lines instead of cutting them.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object for each line of input.")] = False,
) -> None:
    """Translate or label text: one line out for each line in, in order.

    --beam, --alpha, --n-best, --batch-tokens, --precision and --strict are for translators.
    """
    from phmctl.devices import set_threads
    from phmctl.errors import UserError
    from phmctl.export.engines import with_engine
    from phmctl.exports import open_model
    from phmctl.inference.answering import answer, open_output, refuse_same_file
    from phmctl.inference.arriving import arriving_lines, in_groups
    from phmctl.inference.workers import Loading, with_workers
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
    opened = with_engine(open_model(run), engine, checkpoint, quantize, precision)
    kind = kind_of(opened.recipe)
    own = None if split is None else kind.split_lines(opened, split)
    given: dict[str, object] = {"beam": beam, "alpha": alpha, "batch_tokens": batch_tokens, "execution": execution}
    given |= {"precision": precision, "n_best": n_best, "strict": strict or None}
    options = {name: value for name, value in given.items() if value is not None}

    def load(name: str) -> "tuple[Loading, Model, Weights]":
        how = Loading(opened.folder, name, device or "auto", tuple(options.items()), own is not None, threads)
        return how, how.of(opened), opened.weights(name)

    with starting():
        loading, model, weights = opened.use(checkpoint, load)
    window *= workers
    groups = in_groups(own, window) if own is not None else arriving_lines(input_, pause=pause, limit=window)
    typed = own is None and input_ is None and sys.stdin is not None and sys.stdin.isatty()
    # A person sees the answers themselves, unless they go into a file.
    silent = (output is not None and not json) or _stdout_is_a_file()
    bar = _progress(model.verb, None if own is None else len(own), shown=silent and not typed)
    file = nullcontext() if output is None else open_output(output, model, opened, weights, resume=resume)
    with file as answers, bar as advance, with_workers(model, loading, workers) as predict:
        answer(model, groups, predict=predict, output=answers, as_json=json, advance=advance)


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
