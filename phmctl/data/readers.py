r"""Readers of text files, tables and JSON lines.

Readers stream their file and can be iterated any number of times. Only ``\n`` ends a line: U+2028, NBSP and ZWSP are
characters of a sentence. Files whose name ends in ``.gz`` are decompressed.

Whether quotes enclose cells differs from table to table, and with the wrong setting rows merge or fall apart. The
setting therefore comes from the :class:`~phmctl.data.card.RowFormat` and is never guessed, and a row with more or fewer
cells than the header is an error.
"""

import csv
import gzip
import html
import json
import re
import shlex
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from io import BufferedReader, TextIOWrapper
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast

from phmctl.data.card import Column, Format, RowFormat
from phmctl.data.rows import UNKNOWN, Location, Row, repeatable
from phmctl.errors import DataError, nearest

UNREADABLE = "\0"  # replaces a line that cannot be read
LONGEST_LINE = 1 << 24  # bytes; a small .gz can unpack to an endless line
# UTF-32's marks come first, because they begin with UTF-16's.
_ENCODINGS = {BOM_UTF32_LE: "utf-32", BOM_UTF32_BE: "utf-32", BOM_UTF16_LE: "utf-16", BOM_UTF16_BE: "utf-16"}
_SUBWORD_MARK = re.compile(r"@@(?: |$)")
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});")
# Elements of IWSLT's train.tags.* that describe a talk; sentences can contain other tags.
_TALK_ELEMENT = re.compile(
    r"\s*</?(?:doc|url|videourl|keywords|speaker|talkid|title|description|reviewer|translator|transcript|content)\b[^>]*>"
)
BLANKS = " \t"  # str.strip() would also remove NBSP, which belongs to the sentence

_SEPARATORS = {"tsv": "\t", "csv": ","}
_LONGEST_FILE = 1 << 28  # characters of a file that is read at once
_PEEKED_BYTES = 1 << 12  # enough to distinguish a JSON array from JSON lines
_BEFORE_JSON = BOM_UTF8 + BOM_UTF32_LE + BOM_UTF32_BE + b" \t\r\n"
_EXTRA_VALUES = range(UNKNOWN, 2**31)
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL and unpaired surrogates

# The limit applies to the whole process; the default is 131,072 characters. A larger limit of the caller stays.
csv.field_size_limit(max(csv.field_size_limit(), LONGEST_LINE))

Record = list[str] | dict[str, Any]  # the cells of a table's row, or a JSON object


# ------------------------------------------------------------------------------------------------- lines


def read_lines(path: Path, longest: int = LONGEST_LINE, *, skip: bool = False) -> Iterator[str]:
    """Yield the lines of a text file without line ends and byte order mark.

    The encoding is UTF-8 unless a byte order mark says UTF-16 or UTF-32. Raises DataError if the file cannot be read,
    if it has carriage returns and no line feed, or if a line is too long, is not UTF-8 or contains NUL; with `skip`,
    such a line is read as :data:`UNREADABLE`.
    """
    with reading(path), open_bytes(path) as handle:
        number = 0
        continues = False  # whether the next part belongs to the same over-long line
        for part in raw_lines(handle, longest):
            if not continues:
                number += 1
                if number == 1 and b"\r" in part[:-1] and not part.endswith(b"\n") and len(part) <= longest:
                    raise DataError(
                        f"{path}: its lines end in carriage returns without line feeds\n"
                        f"convert them: tr '\\r' '\\n' < {shlex.quote(str(path))}"
                    )
                try:
                    yield _checked_line(part, path, number, longest)
                except DataError:
                    if not skip:
                        raise
                    yield UNREADABLE
            continues = len(part) > longest and not part.endswith(b"\n")


def _checked_line(raw: bytes, path: Path, number: int, longest: int) -> str:
    line = decode_line(raw, path, number, longest)
    if "\0" in line:
        raise DataError(
            f"{path}, line {number}: NUL characters; the file is binary, or UTF-16 without a byte order mark\n"
            "convert UTF-16: iconv -f UTF-16LE -t UTF-8 (or UTF-16BE)"
        )
    return line


def raw_lines(handle: BufferedReader, longest: int = LONGEST_LINE) -> Iterator[bytes]:
    """Yield a file's lines in UTF-8 with their line ends, for :func:`decode_line`; an over-long line comes in parts."""
    beginning = handle.peek(4)
    encoding = next((name for mark, name in _ENCODINGS.items() if beginning.startswith(mark)), None)
    if encoding is None:
        yield from iter(partial(handle.readline, longest + 1), b"")
        return
    with TextIOWrapper(handle, encoding, newline="\n") as text:
        while line := text.readline(longest + 1):
            yield line.encode("utf-8")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of opening, reading and decompressing a file into a DataError."""
    try:
        yield
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {path}: {reason}; check that the file exists and is complete") from error


def open_bytes(path: Path) -> BufferedReader:
    if path.suffix.lower() == ".gz":
        return cast("BufferedReader", gzip.open(path, "rb"))
    return path.open("rb")


def decode_line(raw: bytes, name: Path | str, number: int, longest: int = LONGEST_LINE) -> str:
    """Return a line's text without its line end; raises DataError if it is too long or not UTF-8."""
    if len(raw) > longest:
        raise DataError(f"{name}, line {number}: longer than {longest:,} bytes; is it a text file with line ends?")
    if number == 1:
        raw = raw.removeprefix(BOM_UTF8)
    line = raw.removesuffix(b"\n").removesuffix(b"\r")
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        position = f"byte 0x{line[error.start]:02x} at position {error.start + 1}"
        raise DataError(
            f"{name}, line {number}: invalid UTF-8 ({position})\n"
            "find its encoding (`file -i` makes a guess) and convert it: iconv -f ENCODING -t UTF-8"
        ) from error


def join_lines(text: str) -> str:
    """Return a cell's text as one line; elsewhere a sentence is always a line."""
    return text.replace("\r\n", " ").replace("\n", " ")


def _read_file(path: Path) -> str:
    lines, size = [], 0
    for line in read_lines(path, _LONGEST_FILE):
        lines.append(line)
        size += len(line) + 1
        if size > _LONGEST_FILE:
            raise DataError(f"{path} has over {_LONGEST_FILE:,} characters and cannot be streamed; divide it")
    return "\n".join(lines)


# ------------------------------------------------------------------------------------------------- parallel files


def read_sentences(path: Path, form: Format = "text", *, skip: bool = False) -> Iterator[str]:
    """Yield the sentences of one side of a corpus. With `skip`, see :func:`read_lines`; for plain text only."""
    if form == "iwslt-xml":
        return _segments(path)
    lines = read_lines(path, skip=skip and form == "text")
    match form:
        case "bpe":
            return (_SUBWORD_MARK.sub("", line) for line in lines)
        case "iwslt-tags":
            return (line.strip(BLANKS) for line in lines if not _TALK_ELEMENT.match(line))
    return lines


def _segments(path: Path) -> Iterator[str]:
    """Yield the texts of the ``<seg>`` elements of an IWSLT or WMT file, with XML's entities decoded."""
    before, *parts = re.split(r"<seg\b", _read_file(path))
    number = 1 + before.count("\n")
    for part in parts:
        segment, end_tag, _ = part.partition(">")[2].partition("</seg>")
        if not end_tag:
            raise DataError(f"{path}, line {number}: <seg> without </seg>; is the file complete?")
        number += part.count("\n")
        decoded = _ENTITY.sub(lambda entity: html.unescape(entity[0]), segment)
        yield decoded.replace("\n", " ").strip(BLANKS)  # &#10; is a line feed, too


def guess_format(path: Path) -> Format:
    """Return the format of a file by its name: IWSLT's and WMT's naming schemes, otherwise plain text."""
    name = path.name.removesuffix(".gz")
    if name.startswith("train.tags."):
        return "iwslt-tags"
    return "iwslt-xml" if name.endswith((".xml", ".sgm")) else "text"


@repeatable
def parallel_files(
    sources: Sequence[Path], targets: Sequence[Path], form: Format | None = "text", *, skip: bool = False
) -> Iterator[Row]:
    """Yield the sentence pairs of source and target files, which are read one after another.

    Without `form`, the format follows from each file's name. With `skip`, a pair with an unreadable line is not
    `readable`. Raises DataError if a source and its target have different numbers of sentences.
    """
    for source, target in zip(sources, targets, strict=True):
        sides = [read_sentences(path, form or guess_format(path), skip=skip) for path in (source, target)]
        for number, texts in enumerate(zip_longest(*sides), start=1):
            if None in texts:
                counts = [number, number]
                for index, side in enumerate(sides):
                    counts[index] += sum(1 for _ in side)
                counts[texts.index(None)] -= 1
                raise DataError(
                    f"{source} has {counts[0]:,} sentences, but {target} has {counts[1]:,}\n"
                    "parallel files need one line for each pair; are both from the same release?"
                )
            if UNREADABLE in texts:
                yield Row(("", ""), location=Location(str(source), number), readable=False)
            else:
                yield Row(texts)


# ------------------------------------------------------------------------------------------------- tables


@repeatable
def tables(paths: Sequence[Path], row_format: RowFormat, part: str | None = None) -> Iterator[Row]:
    """Yield the rows of tables or JSON lines; with `part`, only the rows with this value in the column ``split``."""
    split_column = None if part is None else row_format.split
    for path in paths:
        records = _records(path, row_format)
        header: list[str] = []
        if row_format.header and row_format.format != "jsonl":
            header = check_columns(path, row_format)
            next(record for _, record in records if record != [UNREADABLE])
        for number, record in records:
            location = Location(str(path), number)
            try:
                if split_column is None or _text(record, header, split_column, location) == part:
                    yield parse_row(record, header, row_format, location)
            except DataError:
                if row_format.odd_rows == "refuse":
                    raise
                unknown = dict.fromkeys(row_format.extras, UNKNOWN)
                yield Row(("",) * len(row_format.texts), None, unknown, location, readable=False)


def parse_row(record: Record, header: list[str], row_format: RowFormat, location: Location) -> Row:
    """Return the row of a table's cells or of a JSON object; raises DataError if a text, label or extra is invalid."""
    if header and len(record) != len(header):
        quoting = "on" if row_format.quoted else "off"
        raise DataError(
            f"{location}: {len(record)} columns, but the header has {len(header)}; check that quoting should "
            f"be {quoting}; --skip-bad-lines leaves these rows out"
        )
    texts = tuple(join_lines(_text(record, header, column, location)) for column in row_format.texts)
    extras = {name: _extra(record, header, column, location) for name, column in row_format.extras.items()}
    label = "" if row_format.label is None else _text(record, header, row_format.label, location).strip()
    if not label or label in row_format.unlabelled:
        return Row(texts, None, extras, location)
    return Row(texts, row_format.names.get(label, label), extras, location)


def _text(record: Record, header: list[str], column: Column, location: Location) -> str:
    """Return the text of a column of a table, or of a field of a JSON object."""
    if isinstance(record, dict):
        name = str(column)
        value = field_of(record, name)
        if value is None and name not in record:
            guess = nearest(name, map(str, record))
            raise DataError(f"{location}: no key {name!r}{guess}; there are {', '.join(record)}")
        if not isinstance(value, (str, int)):
            raise DataError(f"{location}: {name!r} holds {value!r}, but texts and integers are expected")
        text = str(value)
    else:
        index = column if isinstance(column, int) else header.index(column)
        if record == [""]:
            raise DataError(f"{location} is empty; remove the empty lines")
        if index >= len(record):
            raise DataError(f"{location}: {len(record)} columns, but column {index} (counted from 0) is needed")
        text = record[index]
    if _NOT_TEXT.search(text):
        raise DataError(f"{location}: {column!r} contains NUL or an unpaired surrogate, which are not characters")
    return text


def _extra(record: Record, header: list[str], column: Column, location: Location) -> int:
    text = _text(record, header, column, location)
    with suppress(ValueError):
        number = int(text)
        if number in _EXTRA_VALUES:
            return number
    raise DataError(
        f"{location}: column {column!r} holds {text[:40]!r}, not a 32-bit integer of at least {UNKNOWN} (unknown)"
    )


def first_record(path: Path, row_format: RowFormat) -> list[str]:
    """Return the cells of a table's first row, header or not, or the field names of the first JSON object."""
    for _, record in _records(path, row_format):
        if record in ([UNREADABLE], {}):
            continue
        if isinstance(record, list):
            return record
        columns = dict.fromkeys(map(str, row_format.columns))
        nested = [name for name in columns if name not in record and field_of(record, name) is not None]
        return [*record, *nested]
    return []


def check_columns(path: Path, row_format: RowFormat) -> list[str]:
    """Return the column names of a table, or [] for a table without a header.

    Raises DataError if the file is empty, if a column is missing, or if a name is not unique.
    """
    if not row_format.header and row_format.format != "jsonl":
        return []
    names = first_record(path, row_format)
    if not names:
        raise DataError(f"{path} is empty; check that the download or copy is complete")
    required = [name for name in (*row_format.columns, *row_format.header_has) if isinstance(name, str)]
    missing = [name for name in required if name not in names]
    if missing:
        raise DataError(
            f"{path} lacks the column {', '.join(map(repr, missing))}{nearest(missing[0], names)}; "
            f"it has {', '.join(names)} (without a header, columns are numbers from 0)"
        )
    for column in row_format.columns:
        if isinstance(column, str) and names.count(column) > 1:
            raise DataError(f"{path} has {names.count(column)} columns {column!r}; rename all but one")
    return names


def field_of(record: dict[str, Any], name: str) -> Any:
    """Return a field of a JSON object or None; ``translation.de`` is the field `de` of the field `translation`."""
    if name in record:
        return record[name]
    value: Any = record
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _records(path: Path, row_format: RowFormat) -> Iterator[tuple[int, Record]]:
    """Yield the number of each record's first line, and its cells or its JSON object.

    Empty lines of tables are skipped, except in pairs without a header, where they are an error.
    """
    skip = row_format.odd_rows == "drop"
    if row_format.format == "jsonl":
        yield from _json_records(path, skip)
        return
    separator = _SEPARATORS[row_format.format]
    if row_format.quoted:
        yield from _quoted_records(path, separator, skip)
        return
    only_pairs = row_format.label is None and not row_format.header
    for number, line in enumerate(read_lines(path, skip=skip), start=1):
        if line or only_pairs:
            yield number, line.split(separator)


def _quoted_records(path: Path, separator: str, skip: bool) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{line}\n" for line in read_lines(path, skip=skip)), delimiter=separator, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            if not skip or "unexpected end" in str(error):  # an unclosed quote contains the remaining file
                problem = f"invalid quotes ({error}); read it with quoting off"
                if "new-line character" in str(error):
                    problem = "a carriage return outside quotes; replace it by a line feed, or by a blank"
                raise DataError(f"{path}, line {number}: {problem}") from error
            for line in range(number, reader.line_num + 1):  # a quoted cell can contain several lines
                yield line, [UNREADABLE]
            continue
        if cells is None:
            return
        if cells:
            yield number, cells


def _json_records(path: Path, skip: bool) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON lines with their line numbers, or the objects of a JSON array with their positions.

    With `skip`, malformed lines and values that are not objects are read as ``{}``.
    """
    with reading(path), open_bytes(path) as handle:
        is_array = handle.read(_PEEKED_BYTES).lstrip(_BEFORE_JSON).startswith(b"[")
    values: Iterable[tuple[int, Any]]
    if is_array:
        values = enumerate(_parse_json(path, 1, _read_file(path), skip=False), start=1)
    else:
        lines = enumerate(read_lines(path, skip=skip), start=1)
        values = ((number, _parse_json(path, number, line, skip=skip)) for number, line in lines if line.strip())
    for number, value in values:
        if isinstance(value, dict):
            yield number, value
        elif skip:
            yield number, {}
        else:
            unit = "item" if is_array else "line"
            raise DataError(f"{path}, {unit} {number}: expected a JSON object, found {str(value)[:40]!r}")


def _parse_json(path: Path, number: int, text: str, *, skip: bool) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_unique_keys)
    except (ValueError, RecursionError) as error:
        if skip:
            return {}
        raise DataError(f"{path}, line {number}: invalid JSON ({error})") from error


def _unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object that ``json.loads`` has read; raise ValueError if it has a key twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return value
