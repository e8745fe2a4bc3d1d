"""``phmctl decode``: what a trained run answers to lines of text."""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from phmctl.cli.options import Checkpoint, Device, Execution, Json, RunArgument, Threads

Beam = Annotated[int | None, typer.Option(help="Beam size; 1 is greedy. Default: the recipe's.")]
Alpha = Annotated[float | None, typer.Option(help="Exponent of the length penalty. Default: the recipe's.")]
BatchTokens = Annotated[int | None, typer.Option(help="Source tokens a batch, padding included.")]


def decode(
    run: RunArgument,
    input_: Annotated[
        Path | None, typer.Option("--input", help="Text file, one sentence a line (default: stdin).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the answers here, when all is done (default: stdout).")
    ] = None,
    split: Annotated[str | None, typer.Option(help="Take this split of the run's own text: test or valid.")] = None,
    checkpoint: Checkpoint = "best",
    beam: Beam = None,
    alpha: Alpha = None,
    n_best: Annotated[
        int | None, typer.Option(help="Print so many a line: line number, rank, score, text, with tabs between.", min=1)
    ] = None,
    batch_tokens: BatchTokens = None,
    execution: Execution = None,
    window: Annotated[
        int, typer.Option(help="Lines read before they are answered together; 0: 1 at a terminal, else 1024.", min=0)
    ] = 0,
    device: Device = None,
    threads: Threads = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse over-long lines instead of cutting them.")] = False,
    json: Json = False,
) -> None:
    """Translate or label text: one line out for each line in, in order.

    --beam, --alpha, --n-best, --batch-tokens and --strict are a translator's.
    """
    from phmctl.console import emit, emit_json
    from phmctl.devices import set_threads
    from phmctl.errors import UserError
    from phmctl.files import write_atomic
    from phmctl.runs import Run
    from phmctl.tasks.registry import kind_of

    if input_ is not None and split is not None:
        raise UserError("--input and --split exclude each other; leave one out")
    set_threads(threads)
    opened = Run.open(run)
    kind = kind_of(opened.recipe)
    lines = _lines(input_) if split is None else kind.split_lines(opened, split)
    given: dict[str, object] = {"beam": beam, "alpha": alpha, "batch_tokens": batch_tokens, "execution": execution}
    given |= {"n_best": n_best, "strict": strict or None}
    options = {name: value for name, value in given.items() if value is not None}
    predictor = kind.predictor(opened, checkpoint, device or "auto", options=options, own_text=split is not None)
    # A person who types lines waits for each; a file or a pipe is sorted and batched.
    typed = split is None and input_ is None and sys.stdin.isatty()
    silent = output is not None or json or _stdout_is_a_file()
    with _progress(predictor.verb, lines, shown=silent and not typed) as advance:
        found = predictor.predict(lines, window=window or (1 if typed else None), advance=advance)
        if output is None and not json:
            for line in predictor.lines(found):
                emit(f"{line}\n")
            return
        done = list(found)
    if output is not None:
        write_atomic(output, "".join(f"{line}\n" for line in predictor.lines(done)))
    if json:
        where = None if output is None else str(output)
        emit_json({"run": opened.name, **predictor.about(), "output": where, **predictor.as_json(done)})


def _lines(path: Path | None) -> Iterable[str]:
    """Return the lines of a file, or of stdin."""
    from phmctl.data.readers import decode_lines, read_lines

    return decode_lines(sys.stdin.buffer, "stdin") if path is None else read_lines(path)


@contextmanager
def _progress(verb: str, lines: Iterable[str], *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal where nothing else would be seen for long; a pipeline's log is left alone."""
    from phmctl.console import progress

    if not shown:
        yield lambda amount: None
        return
    with progress(verb, len(lines) if isinstance(lines, list) else None, plain=False) as advance:
        yield advance


def _stdout_is_a_file() -> bool:
    """Whether stdout is redirected to a file, not to a terminal or to a program that prints as it reads."""
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except OSError:
        return False
