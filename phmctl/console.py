"""Output: results go to stdout, and progress, notes and warnings to stderr."""

import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TextIO

from phmctl.errors import WriteFailedError

if TYPE_CHECKING:
    from rich.console import Console

# control characters except tab and line feed, bidirectional overrides and isolates, surrogates
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CLOSED_PIPE = 141  # exit code that a shell reports for SIGPIPE
_MAX_COLUMNS = 100_000
_COLUMNS_OFF_TERMINAL = 160
_REDRAW_SECONDS = 0.1  # minimum time between two drawings of a progress bar

_silent: ContextVar[bool] = ContextVar("silent", default=False)


def people() -> "Console":
    """Return a rich console on stderr that prints text literally: no markup, no emoji codes."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


@contextmanager
def silence(silent: bool = True) -> Iterator[None]:
    """Suppress notes, warnings and progress bars of this thread. ``silence(False)`` changes nothing."""
    token = _silent.set(silent or _silent.get())
    try:
        yield
    finally:
        _silent.reset(token)


def printable(text: str) -> str:
    """Escape the characters that could move a terminal's cursor or hide text. Tabs and line feeds stay.

    File names, cards, tensor names and server replies can contain them.
    """
    return _UNPRINTABLE.sub(lambda match: ascii(match[0])[1:-1], text)


def note(message: str) -> None:
    """Print one line on stderr. A closed pipe (``| head -1``) or a lost terminal does not stop the work."""
    if _silent.get() or sys.stderr is None:
        return
    try:
        sys.stderr.write(printable(message) + "\n")
        sys.stderr.flush()
    except OSError:
        _discard(sys.stderr)
    except (RuntimeError, ValueError):  # a signal handler interrupted another write, or the stream is closed
        pass


def warn(message: str) -> None:
    note(f"warning: {message}")


def is_terminal(stream: TextIO | None) -> bool:
    return stream is not None and not stream.closed and stream.isatty()


def emit(text: str) -> None:
    """Print a result on stdout as UTF-8 in every locale. A terminal gets :func:`printable` text."""
    if is_terminal(sys.stdout):
        text = printable(text)
    try:
        sys.stdout.flush()
        if hasattr(sys.stdout, "buffer"):
            sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
        else:  # in a notebook
            sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
        raise SystemExit(_CLOSED_PIPE) from None
    except OSError as error:
        _discard(sys.stdout)
        reason = error.strerror or error
        raise WriteFailedError(f"cannot write to stdout: {reason}; the output is incomplete") from error


def _discard(stream: TextIO) -> None:
    """Redirect a stream to the null device, so that the interpreter can flush the buffer at exit."""
    with suppress(OSError, AttributeError):  # a stream without a file descriptor
        descriptor = stream.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)


def json_text(value: object, indent: int | None = None) -> str:
    r"""Return JSON with unprintable characters as JSON escapes (``\u202e``)."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


@dataclass(frozen=True)
class Table:
    """A table to print. The first column and those in `text` are left-aligned, the others right-aligned."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    text: Sequence[int] = ()
    below: Sequence[str] = ()  # lines printed after the rows

    def drawn(self) -> str:
        """Return the table as text for this terminal's width.

        Cells are wrapped between words only, so that names can be copied. Long words make the table wider.
        """
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table as RichTable

        terminal = Console()
        available = terminal.width if terminal.is_terminal else _COLUMNS_OFF_TERMINAL
        rows = [[printable(str(cell)) for cell in row] for row in self.rows]
        table = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        for index, name in enumerate(map(printable, self.columns)):
            cells = [name, *(row[index] for row in rows)]
            justify: Literal["left", "right"] = "left" if index in (0, *self.text) else "right"
            unbroken = not any(" " in cell for cell in cells)
            longest_word = max((cell_len(word) for cell in cells for word in cell.split()), default=0)
            table.add_column(name, justify=justify, overflow="fold", no_wrap=unbroken, min_width=longest_word)
        for row in rows:
            table.add_row(*row)
        output = io.StringIO()
        console = Console(
            file=output, width=_MAX_COLUMNS, force_terminal=False, highlight=False, markup=False, emoji=False
        )
        console.width = max(available, console.measure(table).minimum)
        console.print(table)
        title = [printable(self.title)] if self.title else []
        lines = [*title, *output.getvalue().splitlines(), *map(printable, self.below)]
        return "".join(f"{line.rstrip()}\n" for line in lines)


@dataclass(frozen=True)
class Shown:
    """The output of a command in each form, and the exit code."""

    json: object = None  # the document of ``--json``
    tables: Iterable[Table] = ()  # printed without ``--json``
    notes: Iterable[str] = ()  # lines on stderr, unless the output is JSON
    text: str = ""  # printed on stdout after the tables
    code: int = 0

    def show(self, as_json: bool = False) -> None:
        """Print the output. Raises as :func:`emit` does."""
        if as_json:
            emit(json_text(self.json, indent=2) + "\n")
        else:
            for table in self.tables:
                emit(table.drawn())
            for line in self.notes:
                note(line)
            if self.text:
                emit(self.text)


@contextmanager
def progress(description: str, total: int | None, *, plain: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal. Otherwise, if `plain`, print one line. Yields a function that advances it.

    The bar is drawn only when it advances: a drawing thread would take processor time from benchmarks.
    """
    # Importing rich takes long. It ignores that stderr is not a terminal only if one of these variables is set
    forced = any(name in os.environ for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))
    bar_wanted = not _silent.get() and (forced or is_terminal(sys.stderr))
    console = people() if bar_wanted else None
    description = printable(description)
    if console is None or not console.is_terminal:
        if plain:
            note(f"{description} ...")
        yield lambda amount: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, auto_refresh=False) as bar:
        task = bar.add_task(description, total=total)
        bar.refresh()
        drawn = time.monotonic()

        def advance(amount: int) -> None:
            nonlocal drawn
            bar.advance(task, amount)
            if time.monotonic() - drawn >= _REDRAW_SECONDS:
                bar.refresh()
                drawn = time.monotonic()

        yield advance
