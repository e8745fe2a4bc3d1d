"""What tests of files share: rows from pairs and back, files written and damaged, a user's own prepared by one call."""

import gzip
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phmctl.data.card import RowFormat
from phmctl.data.corpus import Corpus, own_corpus
from phmctl.data.prepared.folder import PreparedData
from phmctl.data.prepared.prepare import prepare
from phmctl.data.rows import Row
from phmctl.recipe.schema import LabelledSection, ParallelSection


@contextmanager
def deadline(seconds: int) -> Iterator[None]:
    """Fail what takes longer."""

    def late(*_: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def as_rows(pairs: Iterable[tuple[str, ...]]) -> list[Row]:
    """Return rows of these texts."""
    return [Row(tuple(pair)) for pair in pairs]


def texts(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    """Return the texts of rows."""
    return [row.texts for row in rows]


def put(path: Path, *lines: str, end: str = "\n", mark: bytes = b"") -> Path:
    """Write lines into a file, whose folder is made; compressed where its name ends in ``.gz``."""
    content = mark + "".join(line + end for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def flip(path: Path, at: int = -1) -> None:
    """Change a bit of a file, in its last byte or another: the size stays."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Leave the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def files_below(folder: Path) -> dict[str, bytes]:
    """Return what each file of a folder, and of those below it, holds."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sizes(corpus: Corpus) -> dict[str, int]:
    """Return the number of rows of each split."""
    return {split: sum(1 for _ in rows) for split, rows in corpus.splits.items()}


def parallel(splits: Mapping[str, Iterable[tuple[str, str]]], **more: Any) -> Corpus:
    """Return a German-English corpus of these pairs."""
    return Corpus("tiny", {name: as_rows(pairs) for name, pairs in splits.items()}, ("de", "en"), **more)


def prepare_files(data: ParallelSection, *, files: Mapping[str, Sequence[Path]], **more: Any) -> PreparedData:
    """Prepare a user's own parallel files."""
    return prepare(data, own=own_corpus(data.card, {split: [pair] for split, pair in files.items()}), **more)


def as_given(tables: Mapping[str, Path]) -> dict[str, list[list[Path]]]:
    """Return a table a split in the form of a command line, where each may have several."""
    return {split: [[table]] for split, table in tables.items()}


def prepare_tables(data: LabelledSection, *, tables: Mapping[str, Path], rows: RowFormat, **more: Any) -> PreparedData:
    """Prepare a user's own tables of labelled text."""
    settings = {"rows": rows.model_dump(mode="json")}
    return prepare(data, own_corpus(data.card, as_given(tables), rows), settings=settings, **more)
