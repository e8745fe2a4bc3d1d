"""Readers of parallel text: sentence pairs out of files as people really have them.

Each reader streams, can be iterated again and again, and takes ``\\n`` alone for the end of a line: U+2028, NBSP and
ZWSP are characters of a sentence. Files whose name ends in ``.gz`` are decompressed on the way.
"""

import gzip
import html
import re
import zlib
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_BE, BOM_UTF32_LE
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BufferedReader, TextIOWrapper
from itertools import zip_longest
from pathlib import Path
from typing import Generic, Literal, Protocol, TypeVar, cast

from phmctl.errors import DataError

Pair = tuple[str, str]
Row = TypeVar("Row")
Format = Literal["text", "bpe", "iwslt-xml", "iwslt-tags", "sgm"]

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


class PairSource(Protocol):
    """Sentence pairs (source, target) that can be iterated any number of times."""

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs in order; raises :class:`DataError` where a file is not what it should be."""
        ...  # pragma: no cover


@dataclass(frozen=True)
class SourceFile:
    """A file of a corpus, and what is read from it: a split's ``source``, its ``target``, or ``pairs`` of both."""

    path: Path
    split: str
    side: str


def read_lines(path: Path, longest: int = LONGEST_LINE) -> Iterator[str]:
    """Yield a text file's lines without their ends (``\\n`` or ``\\r\\n``) and without a byte order mark.

    The mark also tells UTF-16 and UTF-32; without one the file is UTF-8.

    Args:
        path: the file; ``.gz`` is decompressed.
        longest: bytes of a line, at most.

    Raises:
        DataError: the file cannot be read, or a line is too long or is not UTF-8 (named by file and line).
    """
    with reading(path), open_bytes(path) as handle:
        encoding = next((name for mark, name in _MARKS.items() if handle.peek(4).startswith(mark)), None)
        lines = iter(partial(handle.readline, longest + 1), b"") if encoding is None else _recoded(handle, encoding)
        for number, raw in enumerate(lines, start=1):
            yield decode_line(raw, path, number, longest)


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


def _text(lines: Iterable[str], path: Path) -> Iterator[str]:
    yield from lines


def _undo_bpe(lines: Iterable[str], path: Path) -> Iterator[str]:
    """Join subword-nmt's pieces: ``pyrami@@ de`` is ``pyramide``."""
    for line in lines:
        yield _SUBWORD_MARK.sub("", line)


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


def _iwslt_tags(lines: Iterable[str], path: Path) -> Iterator[str]:
    """Yield the transcript lines of ``train.tags.*``, leaving out the lines with a talk's data (URL, title, ...)."""
    for line in lines:
        if not _TALK_DATA.match(line):
            yield line.strip(BLANKS)


_FORMATS: Mapping[Format, Callable[[Iterable[str], Path], Iterator[str]]] = {
    "text": _text,
    "bpe": _undo_bpe,
    "iwslt-xml": _segments,
    "iwslt-tags": _iwslt_tags,
    "sgm": _segments,
}


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
    return _FORMATS[form](read_lines(path), path)


def guess_format(path: Path) -> Format:
    """Return the format that a file's name stands for: IWSLT's and WMT's own names, otherwise plain text."""
    name = path.name.removesuffix(".gz")
    if name.startswith("train.tags."):
        return "iwslt-tags"
    if name.endswith(".sgm"):
        return "sgm"
    return "iwslt-xml" if name.endswith(".xml") else "text"


@dataclass(frozen=True)
class ParallelFiles:
    """Pairs from files of equal length, a side each; several files follow one another in the order given.

    Attributes:
        source: the source side's files.
        target: the target side's files, as many.
        form: how each file is read; None reads each as its name says (:func:`guess_format`).
    """

    source: Sequence[Path]
    target: Sequence[Path]
    form: Format | None = "text"

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs; raises :class:`DataError` with both files and counts where lengths differ."""
        for source, target in zip(self.source, self.target, strict=True):
            yield from self._pairs(source, target)

    def _pairs(self, source: Path, target: Path) -> Iterator[Pair]:
        left = read_sentences(source, self.form or guess_format(source))
        right = read_sentences(target, self.form or guess_format(target))
        for count, (one, other) in enumerate(zip_longest(left, right)):
            if one is None or other is None:
                sources = count + (one is not None) + _rest(left)
                raise _unequal(source, sources, target, count + (other is not None) + _rest(right))
            yield one, other


def _rest(sentences: Iterator[str]) -> int:
    return sum(1 for _ in sentences)


def _unequal(source: Path, sources: int, target: Path, targets: int) -> DataError:
    return DataError(
        f"{source} has {sources:,} sentences, but {target} has {targets:,}\n"
        "parallel files must have one line each for every pair; are both of the same release?"
    )


@dataclass(frozen=True)
class TabSeparated:
    """Pairs from lines ``source<TAB>target``, without quoting.

    Attributes:
        paths: the files, one after another.
        columns: the columns of source and target, counted from 0.
    """

    paths: Sequence[Path]
    columns: tuple[int, int] = (0, 1)

    def __iter__(self) -> Iterator[Pair]:
        """Yield the pairs; raises :class:`DataError` with file and line where a column is missing."""
        for path in self.paths:
            for number, line in enumerate(read_lines(path), start=1):
                yield self._pair(path, number, line)

    def _pair(self, path: Path, number: int, line: str) -> Pair:
        cells = line.split("\t")
        if len(cells) <= max(self.columns):
            wanted = max(self.columns) + 1
            raise DataError(f"{path}, line {number}: {len(cells)} tab-separated columns, but column {wanted} is wanted")
        return cells[self.columns[0]], cells[self.columns[1]]


@dataclass(frozen=True)
class HoldOut(Generic[Row]):
    """Every `period`-th row of another source, or all the others: a validation set taken out of a train set.

    Attributes:
        rows: the whole, numbered from 1: pairs, or labelled examples.
        period: how often a row is held out.
        held: yield those held out (True) or the rest (False).
        places: which of every `period` rows; the first is 1, and 0 or `period` the last.
    """

    rows: Iterable[Row]  # that can be iterated again
    period: int
    held: bool
    places: tuple[int, ...] = (0,)

    def __iter__(self) -> Iterator[Row]:
        """Yield one part of the rows."""
        places = {place % self.period for place in self.places}
        for number, row in enumerate(self.rows, start=1):
            if (number % self.period in places) is self.held:
                yield row
