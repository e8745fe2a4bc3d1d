r"""Readers of lines, tables, JSON lines and translation memories: the rows of a corpus, one after another.

Readers stream their file and can be iterated any number of times. Text is UTF-8. Only ``\n`` ends a line: U+2028, NBSP
and ZWSP are characters of a sentence. Files whose name ends in ``.gz`` are decompressed.

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
import unicodedata
import zlib
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from itertools import zip_longest
from pathlib import Path
from typing import Any, cast
from xml.etree import ElementTree

from phmctl.data import UNKNOWN, Location, Row, repeatable
from phmctl.data.card import Column, Format, RowFormat
from phmctl.errors import DataError, nearest
from phmctl.metrics.text import language

BLANKS = " \t"  # str.strip() would also remove NBSP, which belongs to the sentence
_SUBWORD_MARK = re.compile(r"@@(?: |$)")
_ENTITY = re.compile(r"&(?:amp|lt|gt|quot|apos|#[0-9]{1,7}|#x[0-9a-fA-F]{1,6});")
# Elements of IWSLT's train.tags.* that describe a talk. Sentences can contain other tags.
_TALK_ELEMENT = re.compile(
    r"\s*</?(?:doc|url|videourl|keywords|speaker|talkid|title|description|reviewer|translator|transcript|content)\b[^>]*>"
)
_EXTRA_VALUES = range(UNKNOWN, 2**31)
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")  # NUL and unpaired surrogates

csv.field_size_limit(2**31 - 1)  # characters of a cell, in the whole process. The default is 131,072

Record = list[str] | dict[str, Any]  # the cells of a table's row, or a JSON object


# ------------------------------------------------------------------------------------------------- lines


def read_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file without line ends and byte order mark.

    Raises DataError if the file cannot be read, if it has carriage returns and no line feed, or if a line is not UTF-8
    or contains NUL.
    """
    with reading(path), open_bytes(path) as handle:
        for number, raw in enumerate(handle, start=1):
            if number == 1 and b"\r" in raw[:-1] and not raw.endswith(b"\n"):
                raise DataError(
                    f"{path}: its lines end in carriage returns without line feeds\n"
                    f"convert them: tr '\\r' '\\n' < {shlex.quote(str(path))}"
                )
            line = decode_line(raw, path, number)
            if "\0" in line:
                raise DataError(
                    f"{path}, line {number}: NUL characters. The file is binary, or UTF-16\n"
                    "convert UTF-16: iconv -f UTF-16LE -t UTF-8 (or UTF-16BE)"
                )
            yield line


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of opening, reading and decompressing a file into a DataError."""
    try:
        yield
    except (OSError, EOFError, zlib.error, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise DataError(f"cannot read {path}: {reason}. Check that the file exists and is complete") from error


def opener(path: Path) -> Callable[..., Any]:
    """Return the function that opens a file: ``gzip.open`` for a name that ends in ``.gz``, else ``open``."""
    return gzip.open if path.suffix.lower() == ".gz" else open


def open_bytes(path: Path) -> BufferedReader:
    return cast("BufferedReader", opener(path)(path, "rb"))


def decode_line(raw: bytes, name: Path | str, number: int) -> str:
    """Return a line's text without its line end. Raises DataError if it is not UTF-8."""
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
    """Return a cell's text as one line. Elsewhere a sentence is always a line."""
    return text.replace("\r\n", " ").replace("\n", " ")


# ------------------------------------------------------------------------------------------------- parallel files


def read_sentences(path: Path, form: Format = "text") -> Iterator[str]:
    """Yield the sentences of one side of a corpus."""
    if form == "iwslt-xml":
        return _segments(path)
    lines = read_lines(path)
    match form:
        case "bpe":
            return (_SUBWORD_MARK.sub("", line) for line in lines)
        case "iwslt-tags":
            return (line.strip(BLANKS) for line in lines if not _TALK_ELEMENT.match(line))
    return lines


def _segments(path: Path) -> Iterator[str]:
    """Yield the texts of the ``<seg>`` elements of an IWSLT or WMT file, with XML's entities decoded."""
    before, *parts = re.split(r"<seg\b", "\n".join(read_lines(path)))
    number = 1 + before.count("\n")
    for part in parts:
        segment, end_tag, _ = part.partition(">")[2].partition("</seg>")
        if not end_tag:
            raise DataError(f"{path}, line {number}: <seg> without </seg>. Is the file complete?")
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
def parallel_files(sources: Sequence[Path], targets: Sequence[Path], form: Format | None = "text") -> Iterator[Row]:
    """Yield the sentence pairs of source and target files, which are read one after another.

    Without `form`, the format follows from each file's name. Raises DataError if a source and its target have different
    numbers of sentences.
    """
    for source, target in zip(sources, targets, strict=True):
        sides = [read_sentences(path, form or guess_format(path)) for path in (source, target)]
        for number, texts in enumerate(zip_longest(*sides), start=1):
            if None in texts:
                counts = [number, number]
                for index, side in enumerate(sides):
                    counts[index] += sum(1 for _ in side)
                counts[texts.index(None)] -= 1
                raise DataError(
                    f"{source} has {counts[0]:,} sentences, but {target} has {counts[1]:,}\n"
                    "parallel files need one line for each pair. Are both from the same release?"
                )
            yield Row(texts)


# ------------------------------------------------------------------------------------------------- tables


@repeatable
def tables(paths: Sequence[Path], row_format: RowFormat, part: str | None = None) -> Iterator[Row]:
    """Yield the rows of tables or JSON lines. With `part`, only the rows with this value in the column ``split``."""
    split = None if part is None else row_format.split
    for path in paths:
        rows = records(path, row_format)
        header = _header(path, rows, row_format)
        for number, record in rows:
            location = Location(str(path), number)
            try:
                if split is None or part == _text(record, header, split, location):
                    yield parse_row(record, header, row_format, location)
            except DataError:
                if row_format.odd_rows == "refuse":
                    raise
                unknown = dict.fromkeys(row_format.extras, UNKNOWN)
                yield Row(("",) * len(row_format.texts), None, unknown, location, readable=False)


def _header(path: Path, rows: Iterator[tuple[int, Record]], row_format: RowFormat) -> list[str]:
    """Read the header of a table, [] of one without header and of JSON lines.

    Raises DataError if the file is empty, or if it does not have each of the format's columns once.
    """
    if not row_format.header or row_format.format == "jsonl":
        return []
    names = next((list(cells) for _, cells in rows), [])
    if not names:
        raise DataError(f"{path} is empty. Check that the download or copy is complete")
    for column in row_format.columns:
        count = names.count(str(column))
        if isinstance(column, int) or count == 1:
            continue
        problem = f"has {count} columns {column!r}. Rename all but one"
        if count == 0:
            problem = f"lacks the column {column!r}{nearest(column, names)}. It has {', '.join(names)}"
        raise DataError(f"{path} {problem} (without a header, columns are numbers from 0)")
    return names


def parse_row(record: Record, header: list[str], row_format: RowFormat, location: Location) -> Row:
    """Return the row of a table's cells or of a JSON object. Raises DataError if a text, label or extra is invalid."""
    if header and len(record) != len(header):
        quoting = "on" if row_format.quoted else "off"
        raise DataError(
            f"{location}: the number of columns is {len(record)}, but the header's is {len(header)}. Check that "
            f"quoting should be {quoting}"
        )
    texts = tuple(join_lines(_text(record, header, column, location)) for column in row_format.texts)
    extras = {name: _extra(record, header, column, location) for name, column in row_format.extras.items()}
    label = "" if row_format.label is None else _text(record, header, row_format.label, location).strip()
    if not label or label in row_format.unlabelled:
        return Row(texts, None, extras, location)
    name = unicodedata.normalize("NFC", row_format.names.get(label, label))  # one label for both encodings of é
    return Row(texts, name, extras, location)


def _text(record: Record, header: list[str], column: Column, location: Location) -> str:
    """Return the text of a column of a table, or of a field of a JSON object."""
    if isinstance(record, dict):
        name = str(column)
        value = field_of(record, name)
        if value is None and name not in record:
            guess = nearest(name, map(str, record))
            raise DataError(f"{location}: no key {name!r}{guess}. There are {', '.join(record)}")
        if not isinstance(value, (str, int)):
            raise DataError(f"{location}: {name!r} holds {value!r}, but texts and integers are expected")
        text = str(value)
    else:
        index = column if isinstance(column, int) else header.index(column)
        if record == [""]:
            raise DataError(f"{location} is empty. Remove the empty lines")
        if index >= len(record):
            raise DataError(f"{location}: column {index} (counted from 0) is missing")
        text = record[index]
    if _NOT_TEXT.search(text):
        raise DataError(f"{location}: {column!r} contains NUL or an unpaired surrogate, which are not characters")
    return text


def _extra(record: Record, header: list[str], column: Column, location: Location) -> int:
    text = _text(record, header, column, location)
    with suppress(ValueError):
        if (number := int(text)) in _EXTRA_VALUES:
            return number
    raise DataError(
        f"{location}: column {column!r} holds {text[:40]!r}, not a 32-bit integer of at least {UNKNOWN} (unknown)"
    )


def field_of(record: dict[str, Any], name: str) -> Any:
    """Return a field of a JSON object or None. ``translation.de`` is the field `de` of the field `translation`."""
    if name in record:
        return record[name]
    value: Any = record
    for key in name.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def records(path: Path, row_format: RowFormat) -> Iterator[tuple[int, Record]]:
    """Yield the number of each record's first line, and its cells or its JSON object.

    Empty lines of tables are skipped, except in pairs without a header, where they are an error.
    """
    separator = "," if row_format.format == "csv" else "\t"
    if row_format.format == "jsonl":
        yield from _json_records(path)
    elif row_format.quoted:
        yield from _quoted_records(path, separator)
    else:
        only_pairs = row_format.label is None and not row_format.header
        for number, line in enumerate(read_lines(path), start=1):
            if line or only_pairs:
                yield number, line.split(separator)


def _quoted_records(path: Path, separator: str) -> Iterator[tuple[int, list[str]]]:
    reader = csv.reader((f"{line}\n" for line in read_lines(path)), delimiter=separator, strict=True)
    while True:
        number = reader.line_num + 1
        try:
            cells = next(reader, None)
        except csv.Error as error:
            problem = f"invalid quotes ({error}). Read it with quoting off"
            if "new-line character" in str(error):
                problem = "a carriage return outside quotes. Replace it by a line feed, or by a blank"
            raise DataError(f"{path}, line {number}: {problem}") from error
        if cells is None:
            return
        if cells:
            yield number, cells


def _json_records(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of JSON lines with their line numbers."""
    for number, line in enumerate(read_lines(path), start=1):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            problem = f"expected a JSON object, found {str(value)[:40]!r}"
        except ValueError as error:
            value, problem = None, f"invalid JSON ({error})"
        if not isinstance(value, dict):
            hint = "\nconvert an array to one object a line: jq -c '.[]'" if line.lstrip().startswith("[") else ""
            raise DataError(f"{path}, line {number}: {problem}{hint}")
        yield number, value


# ------------------------------------------------------------------------------------------------- translation memories

_CODES = {"bpt", "ept", "it", "ph", "ut"}  # elements of a segment that hold a tool's codes instead of text
_XML_LANGUAGE = "{http://www.w3.org/XML/1998/namespace}lang"


@repeatable
def translation_memory(path: Path, languages: tuple[str, str]) -> Iterator[Row]:
    """Yield the units of a translation memory that have a segment in both languages, the first of several.

    Raises DataError if the file is not XML, if no unit has both languages, or if one segment would be both sides.
    """
    available: dict[str, None] = {}
    empty = True
    for segments in _units(path):
        available |= dict.fromkeys(segments)
        source, target = (_variety(code, segments) for code in languages)
        if source is None or target is None:
            continue
        if source == target:
            raise DataError(
                f"{path}: {' and '.join(languages)} are both the segment of {source!r}. It has {', '.join(available)}: "
                "name the varieties in languages"
            )
        empty = False
        yield Row((segments[source], segments[target]))
    if empty:
        found = ", ".join(available) or "no language"
        raise DataError(
            f"{path} has no unit in both {' and '.join(languages)}. It has {found}: name two of them in languages"
        )


def _units(path: Path) -> Iterator[dict[str, str]]:
    """Yield the text of each unit's first segment in each language. Memory holds one unit."""
    segments: dict[str, str] = {}
    parents: list[ElementTree.Element] = []
    with reading(path), open_bytes(path) as handle:
        misspelt = re.search(rb"encoding\s*=\s*[\"']utf_?8[\"']", handle.peek(200)[:200], re.IGNORECASE)
        parser = ElementTree.XMLParser(encoding="utf-8" if misspelt else None)
        try:
            for event, element in ElementTree.iterparse(handle, ["start", "end"], parser):
                if event == "start":
                    parents.append(element)
                    continue
                parents.pop()
                name = element.tag.rpartition("}")[2]
                if name == "seg":
                    tuv = parents[-1]  # the attribute of TMX 1.4, or of older versions
                    tag = _tag(tuv.get(_XML_LANGUAGE) or tuv.get("lang") or "")
                    segments.setdefault(tag, join_lines("".join(element.itertext())).strip())
                elif name == "tu":
                    yield segments
                    segments = {}
                    parents[-1].clear()
                elif name in _CODES:
                    element.text = None  # the text behind the element stays
                    del element[:]
        except ElementTree.ParseError as error:
            raise DataError(f"{path}: invalid XML ({error})") from error
        except (ValueError, LookupError) as error:  # an encoding that the parser lacks
            raise DataError(
                f"{path}: {error}. Convert it, iconv -f ENCODING -t UTF-8, and remove encoding=... from line 1"
            ) from error


def _variety(code: str, tags: Iterable[str]) -> str | None:
    """Return the tag that a code means: the same tag, or else the first variety of it, or else its language alone."""
    wanted = _tag(code)
    if wanted in tags:
        return wanted
    varieties = (tag for tag in tags if tag.startswith(f"{wanted}-"))
    main = wanted.partition("-")[0]
    return next(varieties, main if main in tags else None)


def _tag(code: str) -> str:
    """Return a language's tag in lower case: ``zh-hant`` for ``zho_Hant``."""
    main, *further = re.split("[-_]", code.lower())
    return "-".join([language(main), *further])
