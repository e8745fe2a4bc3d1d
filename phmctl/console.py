"""What is printed: data and tables on stdout, progress and notes for people on stderr."""

import csv
import io
import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Any, Literal, TextIO, cast

from phmctl.errors import WriteFailedError

if TYPE_CHECKING:
    from rich.console import Console

# C0 but for tab and line feed, DEL and C1; what turns the direction of writing; halves of surrogate pairs
_UNPRINTABLE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
_CLOSED_PIPE = 141  # as a shell reports SIGPIPE
_WIDEST = 100_000  # columns: more than a table's words ever want
_UNSEEN = 160  # columns where there is no terminal
_REDRAW = 0.1  # seconds between two drawings of a bar, at least

_LATEX = str.maketrans(
    {each: f"\\{each}" for each in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
    | {"±": r"$\pm$", "†": r"$\dagger$", "−": "$-$", "Δ": r"$\Delta$", "<": "$<$", ">": "$>$"}
)
_silent: ContextVar[bool] = ContextVar("silent", default=False)


def people() -> "Console":
    """Return a console on stderr. Text is shown as it is: ``[x]`` and ``:x:`` are no markup."""
    from rich.console import Console

    return Console(file=cast("IO[str]", _Stderr()), highlight=False, markup=False, emoji=False)


@contextmanager
def silence(silent: bool = True) -> Iterator[None]:
    """Speak to a program, in this thread: nothing goes to stderr. With False all stays as it is."""
    token = _silent.set(silent or _silent.get())
    try:
        yield
    finally:
        _silent.reset(token)


def printable(text: str) -> str:
    """Return text as a terminal may have it: what would move its cursor or hide other text is written as an escape.

    File names, cards, tensors' names and servers' answers are others' words. Tabs and line ends stay.
    """
    return _UNPRINTABLE.sub(lambda found: ascii(found[0])[1:-1], text)


def note(message: str) -> None:
    """Print one line for people on stderr."""
    if _silent.get():
        return
    stream = _Stderr() if not hasattr(sys.stderr, "rich_proxied_file") else sys.stderr  # a bar shows it above itself
    stream.write(printable(message) + "\n")
    stream.flush()


class _Stderr:
    """Stderr, for people. That nobody reads it any more (``| head -1``, a lost terminal) is no reason to stop work."""

    def __getattr__(self, name: str) -> Any:
        """Return what stderr itself has: while a bar is shown, rich stands in its place and would write to us again."""
        return getattr(getattr(sys.stderr, "rich_proxied_file", sys.stderr), name)

    def write(self, text: str) -> int:
        try:
            self.__getattr__("write")(text)
        except RuntimeError:  # a signal's handler came while a line was being written
            with suppress(OSError):
                os.write(2, text.encode(errors="replace"))
        except OSError:
            _discard(cast("TextIO", self))
        return len(text)

    def flush(self) -> None:
        try:
            self.__getattr__("flush")()
        except RuntimeError:
            return
        except OSError:
            _discard(cast("TextIO", self))


def warn(message: str) -> None:
    note(f"warning: {message}")


def emit(text: str) -> None:
    """Print a result on stdout, as UTF-8 whatever the locale. A terminal gets it :func:`printable`, a pipe as it is."""
    if sys.stdout.isatty():
        text = printable(text)
    try:
        sys.stdout.flush()
        if hasattr(sys.stdout, "buffer"):
            sys.stdout.buffer.write(text.encode(errors="backslashreplace"))
        else:  # a notebook's
            sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        _discard(sys.stdout)
        raise SystemExit(_CLOSED_PIPE) from None
    except OSError as error:
        raise stdout_refused(error) from error


def stdout_refused(error: OSError) -> WriteFailedError:
    """What to raise where stdout takes no more; nothing else is written to it from now on."""
    _discard(sys.stdout)
    return WriteFailedError(f"cannot write to stdout: {error.strerror or error}; the output is not complete")


def _discard(stream: TextIO) -> None:
    """Send what is still buffered nowhere, or the interpreter would complain about it at its end."""
    with suppress(OSError):  # a stream without a descriptor has no such end
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def json_text(value: Any, indent: int | None = None) -> str:
    r"""Return JSON in which what no terminal should see stands as JSON's own escapes: ``\u202e``."""
    text = json.dumps(value, indent=indent, ensure_ascii=False)
    return _UNPRINTABLE.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


@dataclass(frozen=True)
class Table:
    """A table to print. Columns of numbers stand on the right; the first and those in `text` on the left."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[object]]
    text: Sequence[int] = ()
    below: Sequence[str] = ()  # lines of its own

    def drawn(self) -> str:
        """Return it as text. Cells are broken between words only, so that names can be copied: it may be wider so."""
        from rich.cells import cell_len
        from rich.console import Console
        from rich.table import Table as RichTable

        table = RichTable(box=None, padding=(0, 2, 0, 0), pad_edge=False)
        rows = [[printable(str(cell)) for cell in row] for row in self.rows]
        for index, column in enumerate(map(printable, self.columns)):
            words = [column, *(row[index] for row in rows)]
            left: Literal["left", "right"] = "left" if index in (0, *self.text) else "right"
            single = all(" " not in each for each in words)  # rich would break the widest word, not the longest text
            longest = max((cell_len(word) for each in words for word in each.split()), default=0)
            table.add_column(column, justify=left, overflow="fold", no_wrap=single, min_width=longest)
        for row in rows:
            table.add_row(*row)
        text, terminal = io.StringIO(), Console()
        pen = Console(file=text, width=_WIDEST, force_terminal=False, highlight=False, markup=False, emoji=False)
        pen.width = max(terminal.width if terminal.is_terminal else _UNSEEN, pen.measure(table).minimum)
        pen.print(table)
        lines = [*text.getvalue().splitlines(), *map(printable, self.below)]
        return "\n".join([*[printable(self.title)] * bool(self.title), *(line.rstrip() for line in lines), ""])

    def latex(self) -> str:
        """Return it as a ``tabular`` of the package ``booktabs``, with what stands above and below as comments."""
        head, *body = ([_latex(str(cell)) for cell in row] for row in (self.columns, *self.rows))
        first, *others = (f"  {' & '.join(cells)} \\\\" for cells in (head, *body))
        begin = rf"\begin{{tabular}}{{l{'r' * (len(head) - 1)}}}"
        lines = [begin, r"  \toprule", first, r"  \midrule", *others, r"  \bottomrule", r"\end{tabular}"]
        return "\n".join([f"% {_latex(self.title)}", *lines, *(f"% {_latex(line)}" for line in self.below), ""])


def _latex(text: str) -> str:
    return " ".join(text.split()).translate(_LATEX)


def as_csv(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records as CSV: a column for each figure, ``scores.BLEU.mean``. What is not known is empty."""
    from phmctl.recipe.loading import flatten

    rows = [{name: value for name, value in flatten(each) if not isinstance(value, list)} for each in records]
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


@dataclass(frozen=True)
class Shown:
    """What came of a command."""

    json: Any = None  # the one document of ``--json``
    tables: Iterable[Table] = ()  # what people are shown instead
    records: Sequence[Mapping[str, Any]] = ()  # the same for ``--format csv``
    notes: Iterable[str] = ()  # what is told beside the tables, on stderr
    text: str = ""  # what follows on stdout
    remarks: Iterable[str] = ()  # what is told there beside JSON too
    code: int = 0  # the exit code

    def show(self, form: str = "table") -> None:
        """Print it as ``table``, ``json``, ``csv`` or ``latex``; raises as :func:`emit` does."""
        if form == "json":
            emit(json_text(self.json, indent=2) + "\n")
        elif form == "csv":
            emit(as_csv(self.records))
        else:
            for table in self.tables:
                emit(table.latex() if form == "latex" else table.drawn())
        for line in () if form == "json" else self.notes:
            note(line)
        if self.text and form not in ("json", "csv"):
            emit(self.text)
        for line in self.remarks:
            note(line)


@contextmanager
def progress(description: str, total: int | None, *, plain: bool = True) -> Iterator[Callable[[int], None]]:
    """Show a progress bar on a terminal; elsewhere, if `plain`, a line when the work starts.

    The bar is drawn when it advances, not by a thread of its own: a benchmark must not share its cores with one.
    """
    # rich takes a while to import, and says of nothing else that it is a terminal
    may_be = sys.stderr.isatty() or any(name in os.environ for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))
    console = people() if may_be and not _silent.get() else None
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
            if time.monotonic() - drawn >= _REDRAW:
                bar.refresh()
                drawn = time.monotonic()

        yield advance
