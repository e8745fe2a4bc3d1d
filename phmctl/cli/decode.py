"""``phmctl decode``: translate text with a trained run."""

import os
import stat
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phmctl.cli.options import Checkpoint, Device, Execution, Json, RunArgument, Threads

if TYPE_CHECKING:
    from phmctl.runs import Run

Beam = Annotated[int | None, typer.Option(help="Beam size; 1 is greedy. Default: the recipe's.")]
Alpha = Annotated[float | None, typer.Option(help="Exponent of the length penalty. Default: the recipe's.")]
BatchTokens = Annotated[int | None, typer.Option(help="Source tokens a batch, padding included.")]


def decode(
    run: RunArgument,
    input_: Annotated[
        Path | None, typer.Option("--input", help="Text file, one sentence a line (default: stdin).")
    ] = None,
    output: Annotated[
        Path | None, typer.Option(help="Write the translations here, when all is done (default: stdout).")
    ] = None,
    split: Annotated[
        str | None, typer.Option(help="Translate this split of the run's own text: test or valid.")
    ] = None,
    checkpoint: Checkpoint = "best",
    beam: Beam = None,
    alpha: Alpha = None,
    n_best: Annotated[
        int | None, typer.Option(help="Print so many a line: line number, rank, score, text, with tabs between.", min=1)
    ] = None,
    batch_tokens: BatchTokens = None,
    execution: Execution = None,
    window: Annotated[
        int, typer.Option(help="Lines read before they are translated together; 0: 1 at a terminal, else 1024.", min=0)
    ] = 0,
    device: Device = None,
    threads: Threads = 0,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse over-long lines instead of cutting them.")] = False,
    json: Json = False,
) -> None:
    """Translate text: one line out for each line in, in order."""
    from phmctl.console import emit, emit_json
    from phmctl.decoding.output import as_json, best_lines, n_best_lines
    from phmctl.decoding.settings import change_decoding
    from phmctl.decoding.translator import WINDOW
    from phmctl.devices import set_threads
    from phmctl.errors import UserError
    from phmctl.files import write_atomic
    from phmctl.recipe.schema import TranslationRecipe
    from phmctl.runs import Run
    from phmctl.tasks.translation import load_translator

    if input_ is not None and split is not None:
        raise UserError("--input and --split exclude each other; leave one out")
    set_threads(threads)
    opened = Run.open(run)
    lines = _lines(opened, input_, split)
    settings = change_decoding(
        opened.recipe_of(TranslationRecipe).decoding,
        beam=beam,
        alpha=alpha,
        batch_tokens=batch_tokens,
        execution=execution,
    )
    if n_best is not None and n_best > settings.beam:
        raise UserError(f"--n-best {n_best} wants a beam as wide; add --beam {n_best}")
    translator = load_translator(opened, checkpoint, device or "auto", settings, cleaned=split is not None)
    # A person who types lines waits for each; a file or a pipe is sorted and batched.
    typed = split is None and input_ is None and sys.stdin.isatty()
    as_lines = best_lines if n_best is None else n_best_lines
    silent = output is not None or json or _stdout_is_a_file()
    with _progress(lines, shown=silent and not typed) as advance:
        found = translator.translate_stream(
            lines, n_best=n_best or 1, strict=strict, window=window or (1 if typed else WINDOW), advance=advance
        )
        if output is None and not json:
            for line in as_lines(found):
                emit(f"{line}\n")
            return
        done = list(found)
    if output is not None:
        write_atomic(output, "".join(f"{line}\n" for line in as_lines(done)))
    if json:
        where = None if output is None else str(output)
        about = {"run": opened.name, "decoding": settings.model_dump(), "output": where}
        emit_json(about | {"translations": as_json(done)})


def _lines(run: "Run", path: Path | None, split: str | None) -> Iterable[str]:
    """Return the lines of a split, a file, or stdin."""
    from phmctl.data.copies import read_text
    from phmctl.data.readers import decode_lines, read_lines

    if split is not None:
        return read_text(run, split, "source")
    return decode_lines(sys.stdin.buffer, "stdin") if path is None else read_lines(path)


@contextmanager
def _progress(lines: Iterable[str], *, shown: bool) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal where nothing else would be seen for long; a pipeline's log is left alone."""
    from phmctl.console import progress

    if not shown:
        yield lambda amount: None
        return
    with progress("translating", len(lines) if isinstance(lines, list) else None, plain=False) as advance:
        yield advance


def _stdout_is_a_file() -> bool:
    """Whether stdout is redirected to a file, not to a terminal or to a program that prints as it reads."""
    try:
        return stat.S_ISREG(os.fstat(sys.stdout.fileno()).st_mode)
    except OSError:
        return False
