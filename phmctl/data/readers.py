"""Readers: rows of text out of files as people really have them.

Each reader streams, can be iterated again and again, and takes ``\\n`` alone for the end of a line: U+2028, NBSP and
ZWSP are characters of a sentence. Files whose name ends in ``.gz`` are decompressed on the way.

Whether quotes in a table mean anything differs from source to source. With the wrong answer rows merge or fall apart,
so a reader is told (:class:`~phmctl.data.card.Rows`), never guesses, and refuses a row of another width than the
header's.
"""

import csv
import gzip
import html
import json
import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from io import BufferedReader, TextIOWrapper
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

from phmctl.data.card import Column, Format, Hub, Rows
from phmctl.data.rows import UNKNOWN, Row, repeatable
from phmctl.errors import DataError, nearest

Pick = Callable[[Column], str]  # what returns the columns of a record

LONGEST_LINE = 1 << 24  # bytes; a bomb in .gz is one line without end
# UTF-32's before UTF-16's, which it begins with.
_MARKS = {BOM_UTF32_LE: "utf-32", BOM_UTF32_BE: "utf-32", BOM_UTF16_LE: "utf-16", BOM_UTF16_BE: "utf-16"}
_SUBWORD_MARK = re.compile(r"@@(?: |$)")
_SEGMENT = re.compile(r"<seg\b")
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});")
# What the IWSLT releases put between the sentences of train.tags.*: a talk's data, never its words.
_TALK_DATA = re.compile(
    r"\s*</?(?:doc|url|videourl|keywords|speaker|talkid|title|description|reviewer|translator|transcript|content)\b[^>]*>"
)
BLANKS = " \t"  # not str.strip(): NBSP belongs to the sentence

_SEPARATOR = {"tsv": "\t", "csv": ","}
_LONGEST_JSON = 1 << 28  # bytes of a corpus that is one JSON array: it is read at once
_BEGINNING = 1 << 12  # bytes that tell an array from objects
_BEFORE_JSON = BOM_UTF8 + BOM_UTF32_LE + BOM_UTF32_BE + b" \t\r\n"
_WHOLE = range(-(2**31), 2**31)  # what an extra can be
_HALF_PAIR = re.compile("[\ud800-\udfff]")


def read_lines(path: Path, longest: int = LONGEST_LINE) -> Iterator[str]:
    """Yield a text file's lines without their ends (``\\n`` or ``\\r\\n``) and without a byte order mark.

    The mark also tells UTF-16 and UTF-32; without one the file is UTF-8. As that, Latin UTF-16 without a mark can be
    read, a NUL beside each letter: that is seen in the first line.

    Args:
        path: the file; ``.gz`` is decompressed.
        longest: bytes of a line, at most.

    Raises:
        DataError: the file cannot be read, or a line is too long or is not UTF-8 (named by file and line).
    """
    with reading(path), open_bytes(path) as handle:
        for number, raw in enumerate(raw_lines(handle, longest), start=1):
            if number == 1 and b"\0" in raw:
                raise DataError(
                    f"{path}, line 1: NUL characters, so no text, or UTF-16 without its byte order mark\n"
                    "convert that: iconv -f UTF-16LE -t UTF-8 (or UTF-16BE)"
                )
            yield decode_line(raw, path, number, longest)


def raw_lines(handle: BufferedReader, longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """Return a text's lines with their ends, for :func:`decode_line`; too long a one is cut, or in parts."""
    encoding = marked_encoding(handle.peek(4))
    return iter(partial(handle.readline, longest + 1), b"") if encoding is None else _recoded(handle, encoding)


def marked_encoding(beginning: bytes) -> str | None:
    """Return the encoding that a byte order mark tells, UTF-16 or UTF-32; None where there is no such mark."""
    return next((name for mark, name in _MARKS.items() if beginning.startswith(mark)), None)


def _recoded(handle: BufferedReader, encoding: str) -> Iterator[bytes]:
    """Yield lines in UTF-8, whatever they are in; too long a one in parts."""
    with TextIOWrapper(handle, encoding, newline="\n") as text:
        while line := text.readline(LONGEST_LINE + 1):
            yield line.encode("utf-8")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn a refusal to read a file, or to decompress it, into a :class:`DataError`."""
    try:
        yield
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {path}: {reason}; is the file there, and whole?") from error


def open_bytes(path: Path) -> BufferedReader:
    """Open a file to read its bytes, those that ``.gz`` stands for if that is how its name ends."""
    return cast("BufferedReader", gzip.open(path, "rb")) if path.suffix == ".gz" else path.open("rb")


def decode_line(raw: bytes, name: Path | str, number: int, longest: int = LONGEST_LINE) -> str:
    """Return the text of a line that was read with its end, or without one at the end of the file.

    Args:
        raw: its bytes.
        name: what messages call the file.
        number: the line's, from 1; the first may begin with a byte order mark.
        longest: bytes of a line, at most.

    Raises:
        DataError: it is too long, or not UTF-8.
    """
    if len(raw) > longest:
        raise DataError(f"{name}, line {number}: longer than {longest:,} bytes; is it a text, of one line each?")
    if number == 1:
        raw = raw.removeprefix(BOM_UTF8)
    line = raw[:-1].removesuffix(b"\r") if raw.endswith(b"\n") else raw.removesuffix(b"\r")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        wrong = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
        raise DataError(
            f"{name}, line {number}: invalid UTF-8 ({wrong})\n"
            "find out which encoding it is (`file -i` makes a guess) and convert it: iconv -f ENCODING -t UTF-8"
        ) from error


def _undo_bpe(lines: Iterable[str]) -> Iterator[str]:
    """Join subword-nmt's pieces: ``pyrami@@ de`` is ``pyramide``."""
    return (_SUBWORD_MARK.sub("", line) for line in lines)


def _iwslt_tags(lines: Iterable[str]) -> Iterator[str]:
    """Yield the transcript lines of ``train.tags.*``, leaving out the lines with a talk's data (URL, title, ...)."""
    return (line.strip(BLANKS) for line in lines if not _TALK_DATA.match(line))


def _segments(lines: Iterable[str], path: Path) -> Iterator[str]:
    """Yield the ``<seg>`` texts of an IWSLT or WMT dev or test file, with XML's entities replaced."""
    pending: list[str] = []  # of a segment that goes on in the next line
    begun = size = 0
    for number, line in enumerate(lines, start=1):
        if not pending and "<seg" not in line:
            continue
        begun = begun if pending else number
        pending.append(line)
        size += len(line)
        if "</seg>" in line:
            found, rest = _complete(" ".join(pending))
            yield from (_ENTITY.sub(_entity, segment).strip(BLANKS) for segment in found)
            pending, begun, size = ([rest] if rest else []), number, len(rest)
        if size > LONGEST_LINE:
            break
    if pending:
        raise DataError(f"{path}, line {begun}: a <seg> that is never closed; is the file whole?")


def _complete(text: str) -> tuple[list[str], str]:
    """Return the content of the complete segments, and what stands from one on that is not. Linear in the text."""
    found: list[str] = []
    end = 0
    while begin := _SEGMENT.search(text, end):
        inner = text.find(">", begin.end()) + 1
        close = text.find("</seg>", inner) if inner else -1
        if close < 0:
            return found, text[begin.start() :]
        found.append(text[inner:close])
        end = close + len("</seg>")
    return found, ""


def _entity(match: re.Match[str]) -> str:
    """Return an entity's character; a line feed would break the line and becomes a blank."""
    return html.unescape(match[0]).replace("\n", " ")


def read_sentences(path: Path, form: Format = "text") -> Iterator[str]:
    """Yield the sentences of one side.

    Args:
        path: the file; ``.gz`` is decompressed.
        form: ``text``, a sentence a line; ``bpe``, the same with subword-nmt's ``@@ `` undone; ``iwslt-xml``, the
            ``<seg>`` elements; ``iwslt-tags``, the lines of ``train.tags.*`` that are no talk's data; ``sgm``, the
            ``<seg>`` elements of WMT's files.

    Raises:
        DataError: the file cannot be read or is malformed.
    """
    lines = read_lines(path)
    if form in ("iwslt-xml", "sgm"):
        return _segments(lines, path)
    return _undo_bpe(lines) if form == "bpe" else _iwslt_tags(lines) if form == "iwslt-tags" else lines


def guess_format(path: Path) -> Format:
    """Return the format that a file's name stands for: IWSLT's and WMT's own names, otherwise plain text."""
    name = path.name.removesuffix(".gz")
    if name.startswith("train.tags."):
        return "iwslt-tags"
    if name.endswith(".sgm"):
        return "sgm"
    return "iwslt-xml" if name.endswith(".xml") else "text"


@repeatable
def parallel_files(source: Sequence[Path], target: Sequence[Path], form: Format | None = "text") -> Iterator[Row]:
    """Yield pairs from files of equal length, a side each; several files follow one another in the order given.

    Args:
        source: the source side's files.
        target: the target side's files, as many.
        form: how each file is read; None reads each as its name says (:func:`guess_format`).

    Raises:
        DataError: their lengths differ (both files and counts).
    """
    for one, other in zip(source, target, strict=True):
        sides = [read_sentences(path, form or guess_format(path)) for path in (one, other)]
        for count, texts in enumerate(zip_longest(*sides)):
            if None in texts:
                read = zip(texts, sides, strict=True)
                counts = [count + (text is not None) + sum(1 for _ in others) for text, others in read]
                raise DataError(
                    f"{one} has {counts[0]:,} sentences, but {other} has {counts[1]:,}\n"
                    "parallel files must have one line each for every pair; are both of the same release?"
                )
            yield Row(texts)


@repeatable
def tables(paths: Sequence[Path], rows: Rows, part: str | None = None, names: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of one split, from tables or JSON lines.

    Args:
        paths: the files, one after another.
        rows: how they are read.
        part: the value of ``rows.split`` that this split's rows have; None takes every row.
        names: the files as the card names them, for ``rows.of_file``; by default the files' own names.

    Raises:
        DataError: a row is not whole (file and line).
    """
    for path, name in zip(paths, names or [path.name for path in paths], strict=True):
        of_file = {extra: values.get(name, UNKNOWN) for extra, values in rows.of_file.items()}
        for number, pick in _records(path, rows):
            place = (str(path), number)
            if pick is None:
                unknown = dict.fromkeys(rows.extras, UNKNOWN)
                yield Row(("",) * len(rows.texts), None, of_file | unknown, place, whole=False)
            elif part is None or rows.split is None or pick(rows.split) == part:
                yield _row(pick, rows, of_file, place)


def _row(pick: Pick, rows: Rows, of_file: Mapping[str, int], place: tuple[str, int]) -> Row:
    texts = tuple(pick(column).replace("\r\n", " ").replace("\n", " ") for column in rows.texts)
    if rows.verb is not None:
        verb = _whole(pick(rows.verb), rows.verb, place)
        texts = tuple(_before(text, verb, place) for text in texts)
    extras = {name: _whole(pick(column), column, place) for name, column in rows.extras.items()}
    label = None if rows.label is None else named_label(pick(rows.label), rows)
    return Row(texts, label, {**of_file, **extras}, place)


def named_label(value: str, naming: Rows | Hub) -> str | None:
    """Return the label that a file's word stands for; None for the words that stand for no label, and for blanks."""
    word = value.strip()
    return None if not word or word in naming.unlabelled else naming.names.get(word, word)


def first_cells(path: Path, rows: Rows) -> list[str] | None:
    """Return the cells of a table's first line. Raises DataError if it cannot be read."""
    return next((cells for _, cells in _cells(path, rows)), None)


def columns_of(path: Path, rows: Rows) -> list[str] | None:
    """Return the column names of a file with a header, or the keys of its first JSON line; None where there are none.

    Raises:
        DataError: the file cannot be read.
    """
    if rows.format == "jsonl":
        return next((list(record) for _, record in _json_records(path)), [])
    return (first_cells(path, rows) or []) if rows.header else None


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


def _records(path: Path, rows: Rows) -> Iterator[tuple[int, Pick | None]]:
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


def _by_place(path: Path, number: int, row: Sequence[str], places: Mapping[str, int]) -> Pick:
    def pick(column: Column) -> str:
        place = column if isinstance(column, int) else places[column]
        if place >= len(row):
            if not any(row):
                raise DataError(f"{path}, line {number} is empty; a table has a row a line: take the empty lines out")
            raise DataError(
                f"{path}, line {number}: {len(row)} columns, but column {place + 1} is wanted ({place}, counted from 0)"
            )
        return row[place]

    return pick


def _by_key(path: Path, number: int, record: Mapping[str, Any]) -> Pick:
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
    """Yield each record's first line and its cells. Empty lines are no records; of mere pairs they are bad ones."""
    separator = _SEPARATOR[rows.format]
    if rows.quoting:
        yield from _quoted(path, separator)
        return
    mere_pairs = rows.label is None and not rows.header
    for number, line in enumerate(read_lines(path), start=1):
        if line or mere_pairs:
            yield number, line.split(separator)


def _quoted(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{line}\n" for line in read_lines(path)), delimiter=separator, strict=True)
    begun = 1
    while True:
        limit = csv.field_size_limit(LONGEST_LINE)  # the module's own, of all readers in the process
        try:
            cells = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise DataError(
                f"{path}, line {begun}: its quotes are not those of a quoted table ({error}); read it with quoting off"
            ) from error
        finally:
            csv.field_size_limit(limit)
        if cells:
            yield begun, cells
        begun = reader.line_num + 1


def _json_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON-lines file, or of one that holds a single JSON array, with their lines."""
    with reading(path), open_bytes(path) as handle:
        beginning = handle.read(_BEGINNING).lstrip(_BEFORE_JSON)
    if beginning.startswith(b"["):
        lines, size = [], 0
        for line in read_lines(path, _LONGEST_JSON):
            lines.append(line)
            size += len(line)
            if size > _LONGEST_JSON:
                raise DataError(f"{path} is one JSON array of over {_LONGEST_JSON:,} bytes; write an object a line")
        records: Iterable[tuple[int, Any]] = enumerate(_parsed(path, 1, "\n".join(lines)), start=1)
    else:
        numbered = enumerate(read_lines(path), start=1)
        records = ((number, _parsed(path, number, line)) for number, line in numbered if line.strip())
    for number, record in records:
        if not isinstance(record, dict):
            raise DataError(f"{path}, line {number}: no JSON object but {str(record)[:40]!r}")
        yield number, record


def _parsed(path: Path, number: int, text: str) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}, line {number}: no JSON ({error})") from error


def _once(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a key twice")
    return found


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
