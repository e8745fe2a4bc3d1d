"""Output for people: tables, progress, notes. Everything goes to stderr, so that stdout is left to data."""

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from rich.console import Console

T = TypeVar("T")


def people() -> "Console":
    """Return a console on stderr. Text is shown as it is: ``[x]`` and ``:x:`` are no markup."""
    from rich.console import Console

    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def note(message: str) -> None:
    """Print one line for people on stderr."""
    sys.stderr.write(message + "\n")
    sys.stderr.flush()


def warn(message: str) -> None:
    """Print a warning line on stderr."""
    note(f"warning: {message}")


def emit_json(value: Any) -> None:
    """Print the one JSON document of a ``--json`` call on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, stdout: bool = True) -> None:
    """Print a table. The first column is text, the others are aligned right.

    Args:
        title: the line above the table.
        columns: the headings.
        rows: one sequence a row, as long as `columns`; cells are converted with ``str``.
        stdout: print on stdout (a command whose result is the table) or on stderr.
    """
    from rich.console import Console
    from rich.table import Table

    table = Table(title=title, title_justify="left", header_style="bold")
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in rows:
        table.add_row(*(str(cell) for cell in row))
    console = Console(stderr=not stdout, highlight=False, markup=False, emoji=False)
    if not console.is_terminal:
        console.width = 160
    console.print(table)


@contextmanager
def progress(description: str, total: int | None) -> Iterator[Any]:
    """Show a progress bar on a terminal; elsewhere a plain line when the work starts.

    Yields:
        a function ``advance(amount)``.
    """
    console = people()
    if not console.is_terminal:
        note(f"{description} ...")
        yield lambda amount: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)
