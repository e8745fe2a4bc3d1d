r"""Readers: rows of text out of files as people really have them.

Each reader streams, can be iterated again and again, and takes ``\n`` alone for the end of a line: U+2028, NBSP and
ZWSP are characters of a sentence. Files whose name ends in ``.gz`` are decompressed on the way.

Whether quotes in a table mean anything differs from source to source. With the wrong answer rows merge or fall apart,
so a reader is told (:class:`~phmctl.data.card.RowFormat`), never guesses, and refuses a row of another width than the
header's.
"""

import csv
import gzip
import html
import json
import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from io import BufferedReader, TextIOWrapper
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

from phmctl.data.card import Column, Format, Hub, RowFormat
from phmctl.data.rows import UNKNOWN, Row, repeatable
from phmctl.errors import DataError, nearest

BAD = "\0"  # in place of a line that cannot be read
LONGEST_LINE = 1 << 24  # bytes; a bomb in .gz is one line without end
# UTF-32's before UTF-16's, which it begins with.
_MARKS = {BOM_UTF32_LE: "utf-32", BOM_UTF32_BE: "utf-32", BOM_UTF16_LE: "utf-16", BOM_UTF16_BE: "utf-16"}
_SUBWORD_MARK = re.compile(r"@@(?: |$)")
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});")
# What the IWSLT releases put between the sentences of train.tags.*: a talk's data, never its words.
_TALK_DATA = re.compile(
    r"\s*</?(?:doc|url|videourl|keywords|speaker|talkid|title|description|reviewer|translator|transcript|content)\b[^>]*>"
)
BLANKS = " \t"  # not str.strip(): NBSP belongs to the sentence

_SEPARATOR = {"tsv": "\t", "csv": ","}
_LONGEST_TEXT = 1 << 28  # characters of a file that is read at once
_BEGINNING = 1 << 12  # bytes that tell an array from objects
_BEFORE_JSON = BOM_UTF8 + BOM_UTF32_LE + BOM_UTF32_BE + b" \t\r\n"
_WHOLE = range(UNKNOWN, 2**31)  # what an extra can be
_NO_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL, and half of a surrogate pair


# ------------------------------------------------------------------------------------------------- lines


def read_lines(path: Path, longest: int = LONGEST_LINE, *, skip: bool = False) -> Iterator[str]:
    """Yield lines without their ends and without a byte order mark, which tells UTF-16 and UTF-32, or else UTF-8.

    Raises :class:`DataError` for a file that cannot be read, and for a line that is too long, not UTF-8, or has a NUL;
    with `skip` such a line is :data:`BAD`.
    """
    with reading(path), open_bytes(path) as handle:
        number, whole = 0, True
        for raw in raw_lines(handle, longest):
            number += whole
            rest, whole = not whole, len(raw) <= longest or raw.endswith(b"\n")
            if rest:
                continue  # of a line that is too long
            try:
                line = decode_line(raw, path, number, longest)
                if "\0" in line:
                    what = "UTF-16 without its byte order mark\nconvert that: iconv -f UTF-16LE -t UTF-8 (or UTF-16BE)"
                    raise DataError(f"{path}, line {number}: NUL characters, so no text, or {what}")
            except DataError:
                if not skip:
                    raise
                line = BAD
            yield line


def raw_lines(handle: BufferedReader, longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """Yield a text's lines in UTF-8 with their ends, for :func:`decode_line`; too long a one in parts."""
    beginning = handle.peek(4)  # a byte order mark tells of UTF-16 and UTF-32
    encoding = next((name for mark, name in _MARKS.items() if beginning.startswith(mark)), None)
    if encoding is None:
        yield from iter(partial(handle.readline, longest + 1), b"")
        return
    with TextIOWrapper(handle, encoding, newline="\n") as text:
        while line := text.readline(longest + 1):
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
    return cast("BufferedReader", gzip.open(path, "rb")) if path.suffix.lower() == ".gz" else path.open("rb")


def decode_line(raw: bytes, name: Path | str, number: int, longest: int = LONGEST_LINE) -> str:
    """Return the text of a line's bytes; raises :class:`DataError` for one that is too long, or not UTF-8."""
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


def as_line(text: str) -> str:
    """Return a cell's text as one line: a sentence is a line everywhere else."""
    return text.replace("\r\n", " ").replace("\n", " ")


def _whole_text(path: Path) -> str:
    lines, size = [], 0
    for line in read_lines(path, _LONGEST_TEXT):
        lines.append(line)
        size += len(line) + 1
        if size > _LONGEST_TEXT:
            raise DataError(f"{path} is read at once and has over {_LONGEST_TEXT:,} characters; divide it")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------- parallel files


def read_sentences(path: Path, form: Format = "text") -> Iterator[str]:
    """Yield the sentences of one side of a corpus; of ``bpe`` with subword-nmt's ``@@ `` undone."""
    if form == "iwslt-xml":
        return _segments(path)
    lines = read_lines(path)
    match form:
        case "bpe":
            return (_SUBWORD_MARK.sub("", line) for line in lines)
        case "iwslt-tags":
            return (line.strip(BLANKS) for line in lines if not _TALK_DATA.match(line))
    return lines


def _segments(path: Path) -> Iterator[str]:
    """Yield the ``<seg>`` texts of an IWSLT or WMT dev or test file, with XML's entities replaced."""
    number = 1
    for index, part in enumerate(re.split(r"<seg\b", _whole_text(path))):
        segment, closed, _ = part.partition(">")[2].partition("</seg>")
        if index and not closed:
            raise DataError(f"{path}, line {number}: a <seg> that is never closed; is the file whole?")
        number += part.count("\n")
        if index:  # an entity that is a line feed would break the line, too
            segment = _ENTITY.sub(lambda entity: html.unescape(entity[0]), segment)
            yield segment.replace("\n", " ").strip(BLANKS)


def guess_format(path: Path) -> Format:
    """Return the format that a file's name stands for: IWSLT's and WMT's own names, otherwise plain text."""
    name = path.name.removesuffix(".gz")
    if name.startswith("train.tags."):
        return "iwslt-tags"
    return "iwslt-xml" if name.endswith((".xml", ".sgm")) else "text"


@repeatable
def parallel_files(
    source: Sequence[Path], target: Sequence[Path], form: Format | None = "text", *, skip: bool = False
) -> Iterator[Row]:
    """Yield pairs from files of equal length (else DataError), a side each; several files follow one another.

    Without a form each file is read as its name says. With `skip` a bad line of plain text makes a row that is not
    whole.
    """
    for one, other in zip(source, target, strict=True):
        forms = [(path, form or guess_format(path)) for path in (one, other)]
        sides = [
            read_lines(path, skip=True) if skip and each == "text" else read_sentences(path, each)
            for path, each in forms
        ]
        for count, texts in enumerate(zip_longest(*sides)):
            if None in texts:
                read = zip(texts, sides, strict=True)
                counts = [count + (text is not None) + sum(1 for _ in others) for text, others in read]
                raise DataError(
                    f"{one} has {counts[0]:,} sentences, but {other} has {counts[1]:,}\n"
                    "parallel files must have one line each for every pair; are both of the same release?"
                )
            yield Row(("", ""), place=(str(one), count + 1), whole=False) if BAD in texts else Row(texts)


# ------------------------------------------------------------------------------------------------- tables


@repeatable
def tables(paths: Sequence[Path], rows: RowFormat, part: str | None = None) -> Iterator[Row]:
    """Yield the rows of one split, from tables or JSON lines; of a `part` those whose column ``rows.split`` has it."""
    for path in paths:
        records = _records(path, rows)
        header: Sequence[str] = ()
        if rows.header and rows.format != "jsonl":
            header = check_columns(path, rows)
            next(record for record in records if record[1] != [BAD])
        places = {name: place for place, name in enumerate(header)}
        for number, record in records:
            where = f"{path}, line {number}"
            try:
                if header and len(record) != len(header):
                    raise DataError(
                        f"{where}: {len(record)} columns, but the header names {len(header)}; is quoting "
                        f"{'on' if rows.quoted else 'off'} correct for this file? --skip-bad-lines leaves such rows out"
                    )
                pick = partial(_value, where, record, places)
                if part is None or rows.split is None or pick(rows.split) == part:
                    texts = tuple(as_line(pick(column)) for column in rows.texts)
                    extras = {name: _whole(pick(column), column, where) for name, column in rows.extras.items()}
                    label = None if rows.label is None else named_label(pick(rows.label), rows)
                    yield Row(texts, label, extras, (str(path), number))
            except DataError:
                if rows.odd_rows == "refuse":
                    raise
                unknown = dict.fromkeys(rows.extras, UNKNOWN)
                yield Row(("",) * len(rows.texts), None, unknown, (str(path), number), whole=False)


def _whole(value: str, column: Column, where: str) -> int:
    try:
        return _WHOLE.start + _WHOLE.index(int(value))
    except ValueError as error:
        raise DataError(
            f"{where}: column {column!r} holds {value!r}, not a whole number of 32 bits from {UNKNOWN} (not known) on"
        ) from error


def named_label(value: str, naming: RowFormat | Hub) -> str | None:
    """Return the label that a file's word stands for; None for the words that stand for no label, and for blanks."""
    word = value.strip()
    return None if not word or word in naming.unlabelled else naming.names.get(word, word)


def first_record(path: Path, rows: RowFormat) -> list[str]:
    """Return a table's first row, be it a header or not, or the keys of the first JSON object."""
    record = next((record for _, record in _records(path, rows) if record not in ([BAD], {})), list[str]())
    if isinstance(record, list):
        return record
    nested = (name for name in map(str, rows.columns) if name not in record and field_of(record, name) is not None)
    return [*record, *dict.fromkeys(nested)]


def check_columns(path: Path, rows: RowFormat) -> list[str]:
    """Refuse (DataError) a file that is empty, lacks a column, or has one that is read twice; return its columns."""
    if not rows.header and rows.format != "jsonl":
        return []
    present = first_record(path, rows)
    if not present:
        raise DataError(f"{path} is empty; is the download or the copy whole?")
    missing = [each for each in (*rows.columns, *rows.header_has) if isinstance(each, str) and each not in present]
    if missing:
        guess = nearest(missing[0], present)
        raise DataError(
            f"{path} has no column {', '.join(map(repr, missing))}{guess}; it has {', '.join(present)} "
            "(columns of a table without a header are numbers, from 0)"
        )
    for column in rows.columns:
        if isinstance(column, str) and present.count(column) > 1:
            raise DataError(f"{path} has {present.count(column)} columns {column!r}; give each a name of its own")
    return present


def field_of(record: Any, column: str) -> Any:
    """Return a record's field, None where there is none; ``translation.de`` is `de` in the field `translation`."""
    if column in record:
        return record[column]
    for part in column.split("."):
        record = record.get(part) if isinstance(record, dict) else None
    return record


def _value(where: str, record: list[str] | dict[str, Any], places: Mapping[str, int], column: Column) -> str:
    """Return what stands in a column of a table's row, or in a field of a JSON object."""
    if isinstance(record, list):
        place = column if isinstance(column, int) else places[column]
        if record == [""]:
            raise DataError(f"{where} is empty; remove the empty lines")
        if place >= len(record):
            wanted = f"column {place + 1} is wanted ({place}, counted from 0)"
            raise DataError(f"{where}: {len(record)} columns, but {wanted}")
        text = record[place]
    else:
        value = field_of(record, str(column))
        if value is None and column not in record:
            guess = nearest(str(column), map(str, record))
            raise DataError(f"{where}: no key {column!r}{guess}; there are {', '.join(record)}")
        if not isinstance(value, (str, int)):
            raise DataError(f"{where}: {column!r} holds {value!r}, neither text nor a whole number")
        text = str(value)
    if _NO_TEXT.search(text):
        raise DataError(f"{where}: {column!r} holds NUL or half of a surrogate pair, which is no character")
    return text


def _records(path: Path, rows: RowFormat) -> Iterator[tuple[int, Any]]:
    return _json_records(path, rows.odd_rows == "drop") if rows.format == "jsonl" else _cells(path, rows)


def _cells(path: Path, rows: RowFormat) -> Iterator[tuple[int, list[str]]]:
    """Yield each record's first line and its cells. Empty lines are no records; of mere pairs they are bad ones."""
    separator = _SEPARATOR[rows.format]
    if rows.quoted:
        yield from _quoted(path, separator, rows.odd_rows == "drop")
        return
    mere_pairs = rows.label is None and not rows.header
    for number, line in enumerate(read_lines(path, skip=rows.odd_rows == "drop"), start=1):
        if line or mere_pairs:
            yield number, line.split(separator)


def _quoted(path: Path, separator: str, skip: bool) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{line}\n" for line in read_lines(path, skip=skip)), delimiter=separator, strict=True)
    cells: list[str] | None = []
    while cells is not None:
        begun, before = reader.line_num + 1, csv.field_size_limit(LONGEST_LINE)  # of all readers in the process
        bad = 0
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if not skip or "unexpected end" in str(error):  # else the next line is read
                why = f"its quotes are not those of a quoted table ({error}); read it with quoting off"
                raise DataError(f"{path}, line {begun}: {why}") from error
            cells, bad = [], reader.line_num + 1 - begun  # with the lines that an opened quote has taken in
        finally:
            csv.field_size_limit(before)
        yield from ((begun + line, [BAD]) for line in range(bad))
        if cells:
            yield begun, cells


def _json_records(path: Path, skip: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON-lines file with their lines, or of one JSON array, counted.

    With `skip` what is none is an empty one.
    """
    with reading(path), open_bytes(path) as handle:
        beginning = handle.read(_BEGINNING).lstrip(_BEFORE_JSON)
    records: Iterable[tuple[int, Any]]
    if beginning.startswith(b"["):
        word, records = "item", enumerate(_parsed(path, 1, _whole_text(path), False), start=1)
    else:
        lines = enumerate(read_lines(path, skip=skip), start=1)
        word, records = "line", ((number, _parsed(path, number, line, skip)) for number, line in lines if line.strip())
    for number, record in records:
        if not isinstance(record, dict) and not skip:
            raise DataError(f"{path}, {word} {number}: no JSON object but {str(record)[:40]!r}")
        yield number, record if isinstance(record, dict) else {}


def _parsed(path: Path, number: int, text: str, skip: bool) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        if skip:
            return {}
        raise DataError(f"{path}, line {number}: no JSON ({error})") from error
