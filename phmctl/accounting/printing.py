"""Ledgers and comparisons as tables for people."""

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

from phmctl.accounting.counting import ParameterCount
from phmctl.accounting.ledger import Ledger, Row, Totals
from phmctl.accounting.published import PublishedTable
from phmctl.console import note, print_table

_COLUMNS = ("component", "×", "shape", "dense", "this model", "S", "rule", "bias", "norm", "embedding")
_NARROW = 5  # columns that a narrow terminal can show
_COMPARED = ("model", "parameters", "of dense", "without embeddings", "of dense", "rules A", "share of A")
_PUBLISHED = ("row", "published", "our count", "agrees", "what is counted")


def print_count(count: ParameterCount) -> None:
    """Print one variant's ledger or several variants' comparison, then the published figures."""
    if len(count.ledgers) == 1:
        print_ledger(count.ledgers[0])
    elif count.ledgers:
        print_comparison(count.recipe, count.ledgers)
    for table in count.published:
        print_published(table)
        if table.maps is not None and count.ledgers:
            names = (ledger.name.removeprefix(f"{count.recipe} ") for ledger in count.ledgers)
            counted = (f"{name} {table.measure(each):,}" for name, each in zip(names, count.ledgers, strict=True))
            _print_notes([f"{count.recipe} itself, counted so: {', '.join(counted)}"])


def print_ledger(ledger: Ledger) -> None:
    """Print a ledger: a row a component, those of equal layers added up, then the totals.

    A terminal too narrow for all columns gets the first ones, whole, and is told of the others.
    """
    rows = [_cells(row.component, row.copies, "×".join(map(str, row.shape)), row) for row in ledger.folded()]
    rows.append(_cells("total", "", "", ledger.totals))
    rows.append(_cells("without embeddings", "", "", ledger.without_embeddings))
    width = sum(max(map(len, cells)) + 3 for cells in zip(_COLUMNS, *rows, strict=True)) + 1
    fits = not sys.stdout.isatty() or width <= shutil.get_terminal_size().columns
    shown = len(_COLUMNS) if fits else _NARROW
    print_table(f"{ledger.name}: parameters", _COLUMNS[:shown], [row[:shown] for row in rows])
    if not fits:
        _print_notes([f"{', '.join(_COLUMNS[shown:])}: on a terminal of {width} columns, into a pipe, or with --json"])
    whole, inner = ledger.totals, ledger.without_embeddings
    note(f"saved against the dense twin: {1 - whole.share:.1%}; without embeddings {1 - inner.share:.1%}")
    _print_notes(ledger.notes)


def print_comparison(recipe: str, ledgers: Sequence[Ledger]) -> None:
    """Print a row a variant: totals, and their share of the dense twin's."""
    rows = []
    for ledger in ledgers:
        whole, inner = ledger.totals, ledger.without_embeddings
        cells = [ledger.name.removeprefix(f"{recipe} "), _number(whole.parameters), f"{whole.share:.1%}"]
        cells += [_number(inner.parameters), f"{inner.share:.1%}"]
        rows.append([*cells, str(ledger.rules), f"{whole.rule / whole.parameters:.2%}"])
    print_table(f"{recipe}: parameters by variant", _COMPARED, rows)
    _print_notes(dict.fromkeys(text for ledger in ledgers for text in ledger.notes))


def print_published(table: PublishedTable) -> None:
    """Print a published table: the arrangements that matter, their exact counts, and whether each is the figure."""
    rows = []
    for row in table.rows:
        for index, count in enumerate(row.counts):
            holds = "yes" if row.holds(count) else f"no, {row.off(count):+.1%}".replace("-", "−")
            figure = count.figure or ("" if index else row.figure)
            rows.append(("" if index else row.label, figure, _number(count.count), holds, count.arrangement))
    print_table(table.title, _PUBLISHED, rows, text=(4,))
    _print_notes(table.notes)


def _cells(name: str, copies: int | str, shape: str, row: Row | Totals) -> list[str]:
    numbers = (row.dense, row.parameters, row.components, row.rule, row.bias, row.norm, row.embedding)
    return [name, str(copies), shape, *map(_number, numbers)]


def _number(value: int) -> str:
    return f"{value:,}"


def _print_notes(notes: Iterable[str]) -> None:
    width = shutil.get_terminal_size().columns if sys.stderr.isatty() else sys.maxsize
    for text in notes:
        note(textwrap.fill(text, width, initial_indent="· ", subsequent_indent="  "))
