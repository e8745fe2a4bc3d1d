"""Readers of labelled text: rows of tables and JSON lines become examples.

Whether quotes mean anything differs from source to source. With the wrong answer rows merge or fall apart, so a
reader is told (:class:`~phmctl.data.labelled.catalog.Rows`), never guesses, and refuses a row of another width than
the header's.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from phmctl.data.labelled.catalog import Column, Rows
from phmctl.data.readers import LONGEST_LINE, read_lines
from phmctl.errors import DataError, nearest

Labels = Sequence[str]
_SEPARATOR = {"tsv": "\t", "csv": ","}
_LONGEST_JSON = 1 << 30  # bytes of a line: a whole corpus, where it is one array
_WHOLE = range(-(2**31), 2**31)  # what an extra can be
_HALF_PAIR = re.compile("[\ud800-\udfff]")
UNKNOWN = -1  # an extra that is not known


class Example(NamedTuple):
    """One example.

    Attributes:
        texts: one text, or two.
        label: its class by name; None where it has none.
        extras: whole numbers that come with it, :data:`UNKNOWN` where they are not known.
        place: the file and the line, or the row, for messages.
        whole: False for what stands for a row that could not be read; it has neither texts nor a label.
    """

    texts: tuple[str, ...]
    label: str | None
    extras: Mapping[str, int]
    place: tuple[str, int]
    whole: bool = True

    def named(self) -> str:
        """Return its place in words."""
        return f"{self.place[0]}, line {self.place[1]}"


class ExampleSource(Protocol):
    """Examples that can be iterated any number of times."""

    def __iter__(self) -> Iterator[Example]:
        """Yield the examples in order; raises :class:`DataError` where a file is not what it should be."""
        ...  # pragma: no cover


@dataclass(frozen=True)
class TableRows:
    """The examples of one split, from tables or JSON lines.

    Attributes:
        paths: the files, one after another.
        rows: how they are read.
        part: the value of ``rows.split`` that this split's rows have; None takes every row.
        names: the files as the card names them, for ``rows.of_file``; by default the files' own names.
    """

    paths: Sequence[Path]
    rows: Rows
    part: str | None = None
    names: Sequence[str] = field(default_factory=tuple)

    def __iter__(self) -> Iterator[Example]:
        """Yield the examples; raises :class:`DataError` with file and line where a row is not whole."""
        for path, name in zip(self.paths, self.names or [path.name for path in self.paths], strict=True):
            of_file = {extra: values.get(name, UNKNOWN) for extra, values in self.rows.of_file.items()}
            for number, pick in _records(path, self.rows):
                if pick is None:
                    yield self._odd(of_file, (str(path), number))
                elif self.part is None or self.rows.split is None or pick(self.rows.split) == self.part:
                    yield self._example(pick, of_file, (str(path), number))

    def _odd(self, of_file: Mapping[str, int], place: tuple[str, int]) -> Example:
        extras = {**of_file, **dict.fromkeys(self.rows.extras, UNKNOWN)}
        return Example(("",) * len(self.rows.texts), None, extras, place, whole=False)

    def _example(self, pick: Callable[[Column], str], of_file: Mapping[str, int], place: tuple[str, int]) -> Example:
        texts = tuple(pick(column).replace("\r\n", " ").replace("\n", " ") for column in self.rows.texts)
        if self.rows.verb is not None:
            texts = tuple(_before(text, _whole(pick(self.rows.verb), self.rows.verb, place), place) for text in texts)
        extras = {name: _whole(pick(column), column, place) for name, column in self.rows.extras.items()}
        return Example(texts, named_label(pick(self.rows.label), self.rows), {**of_file, **extras}, place)


class Naming(Protocol):
    """What says how a source's labels are to be read."""

    @property
    def names(self) -> Mapping[str, str]: ...

    @property
    def unlabelled(self) -> Sequence[str]: ...


def named_label(value: str, naming: Naming) -> str | None:
    """Return the label that a file's word stands for; None for the words that stand for no label, and for blanks."""
    word = value.strip()
    return None if not word or word in naming.unlabelled else naming.names.get(word, word)


def number_of(example: Example, labels: Labels) -> int:
    """Return the number of an example's class.

    Raises:
        DataError: there is no such class (file, line, and the known ones).
    """
    try:
        return labels.index(example.label or "")
    except ValueError as error:
        shown = ", ".join(labels[:20]) + (f", ... ({len(labels)} in all)" if len(labels) > 20 else "")
        raise DataError(
            f"{example.named()}: unknown label {example.label!r}{nearest(example.label or '', labels)}; known: {shown}"
        ) from error


def columns_of(path: Path, rows: Rows) -> list[str] | None:
    """Return the column names of a file with a header, or the keys of its first JSON line; None where there are none.

    Raises:
        DataError: the file cannot be read.
    """
    if rows.format == "jsonl":
        return next((list(record) for _, record in _json_records(path)), [])
    return next((cells for _, cells in _cells(path, rows)), []) if rows.header else None


def missing_columns(path: Path, rows: Rows) -> list[str]:
    """Return the columns that a file should name and does not."""
    present = columns_of(path, rows)
    wanted = [column for column in (*rows.columns, *rows.header_has) if isinstance(column, str)]
    return [] if present is None else [column for column in wanted if column not in present]


def check_columns(path: Path, rows: Rows) -> None:
    """Refuse a file that lacks a column, or has one that is read twice.

    Raises:
        DataError: names the missing columns and those that are there, or the column that is not the only one.
    """
    missing = missing_columns(path, rows)
    if missing:
        present = columns_of(path, rows)
        if not present:
            raise DataError(f"{path} is empty; is the download or the copy whole?")
        guess = nearest(missing[0], present)
        raise DataError(f"{path} has no column {', '.join(map(repr, missing))}{guess}; it has {', '.join(present)}")
    counts: Counter[Column] = Counter(columns_of(path, rows) or [])
    for column in rows.columns:
        if counts[column] > 1:
            raise DataError(f"{path} has {counts[column]} columns {column!r}; give each a name of its own")


def _records(path: Path, rows: Rows) -> Iterator[tuple[int, Callable[[Column], str] | None]]:
    """Yield the line of each record, and what returns its columns; None for an odd row that is to be dropped."""
    if rows.format == "jsonl":
        for number, record in _json_records(path):
            yield number, _by_key(path, number, record)
        return
    cells = _cells(path, rows)
    header = next(cells, (1, []))[1] if rows.header else None
    if header is not None:
        check_columns(path, rows)
    places = {name: place for place, name in enumerate(header or [])}
    for number, row in cells:
        odd = header is not None and len(row) != len(header)
        if odd and rows.odd_rows == "refuse":
            raise DataError(
                f"{path}, line {number}: {len(row)} columns, but the header names {len(header or [])}; "
                f"is quoting {'on' if rows.quoting else 'off'} right for this file?"
            )
        yield number, None if odd else _by_place(path, number, row, places)


def _by_place(path: Path, number: int, row: Sequence[str], places: Mapping[str, int]) -> Callable[[Column], str]:
    def pick(column: Column) -> str:
        place = column if isinstance(column, int) else places[column]
        if place >= len(row):
            raise DataError(f"{path}, line {number}: {len(row)} columns, but column {place + 1} is wanted")
        return row[place]

    return pick


def _by_key(path: Path, number: int, record: Mapping[str, Any]) -> Callable[[Column], str]:
    def pick(column: Column) -> str:
        if column not in record:
            guess = nearest(str(column), map(str, record))
            raise DataError(f"{path}, line {number}: no key {column!r}{guess}; there are {', '.join(record)}")
        value = record[str(column)]
        if not isinstance(value, (str, int)):
            raise DataError(f"{path}, line {number}: {column!r} holds {value!r}, neither text nor a whole number")
        if isinstance(value, str) and _HALF_PAIR.search(value):
            raise DataError(f"{path}, line {number}: {column!r} holds half of a surrogate pair, which is no character")
        return str(value)

    return pick


def _cells(path: Path, rows: Rows) -> Iterator[tuple[int, list[str]]]:
    """Yield each record's first line and its cells; empty lines are no records."""
    separator = _SEPARATOR[rows.format]
    if rows.quoting:
        yield from _quoted(path, separator)
        return
    for number, line in enumerate(read_lines(path), start=1):
        if line:
            yield number, line.split(separator)


def _quoted(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(LONGEST_LINE)
    reader = csv.reader((f"{line}\n" for line in read_lines(path)), delimiter=separator, strict=True)
    begun = 1
    while True:
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}, line {begun}: its quotes are not those of a quoted table ({error}); read it with quoting off"
            ) from error
        if cells:
            yield begun, cells
        begun = reader.line_num + 1


def _json_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON-lines file, or of one that holds a single JSON array, with their lines."""
    lines = ((number, line) for number, line in enumerate(read_lines(path, _LONGEST_JSON), start=1) if line.strip())
    first = next(lines, None)
    if first is None:
        return
    if first[1].lstrip().startswith("["):
        text = "\n".join([first[1], *(line for _, line in lines)])
        records: Iterable[tuple[int, Any]] = enumerate(_parsed(path, first[0], text), start=1)
    else:
        records = ((number, _parsed(path, number, line)) for number, line in _chained(first, lines))
    for number, record in records:
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: no JSON object but {str(record)[:40]!r}")
        yield number, record


def _chained(first: tuple[int, str], others: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    yield first
    yield from others


def _parsed(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: no JSON ({error})") from error


def _whole(value: str, column: Column, place: tuple[str, int]) -> int:
    try:
        return _WHOLE.start + _WHOLE.index(int(value))
    except ValueError as error:
        raise DataError(
            f"{place[0]}, line {place[1]}: column {column!r} holds {value!r}, not a whole number of 32 bits"
        ) from error


def _before(text: str, verb: int, place: tuple[str, int]) -> str:
    """Return the words in front of the word with the number `verb`, counted from 1."""
    words = text.split(" ")
    if not 1 <= verb <= len(words):
        raise DataError(f"{place[0]}, line {place[1]}: the verb is word {verb}, but there are {len(words)} words")
    return " ".join(words[: verb - 1])
