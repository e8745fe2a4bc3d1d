"""Helpers of tests with files: write, read and damage files, and prepare a user's own files."""

import gzip
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from phmctl.data import Row
from phmctl.data.corpus import Corpus, own_corpus
from phmctl.data.prepare import prepare
from phmctl.data.prepared import PreparedData
from phmctl.recipe.schema import LabelledSection, ParallelSection


def as_rows(pairs: Iterable[tuple[str, ...]]) -> list[Row]:
    return [Row(tuple(pair)) for pair in pairs]


def texts(rows: Iterable[Row]) -> list[tuple[str, ...]]:
    return [row.texts for row in rows]


def put(path: Path, *lines: str, end: str = "\n", mark: bytes = b"") -> Path:
    """Write lines to a file, compressed if its name ends in ``.gz``; its folder is created."""
    content = mark + "".join(line + end for line in lines).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


def flip(path: Path, at: int = -1) -> None:
    """Flip a bit in the last byte of a file, or in another."""
    content = bytearray(path.read_bytes())
    content[at] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    """Cut a file to its first half."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def files_below(folder: Path) -> dict[str, bytes]:
    """Return the content of each file below a folder."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def sizes(corpus: Corpus) -> dict[str, int]:
    return {split: sum(1 for _ in rows) for split, rows in corpus.splits.items()}


def parallel(splits: Mapping[str, Iterable[tuple[str, str]]], **more: Any) -> Corpus:
    return Corpus("tiny", {name: as_rows(pairs) for name, pairs in splits.items()}, ("de", "en"), **more)


def prepare_files(data: ParallelSection, *, files: Mapping[str, Sequence[Path]], **more: Any) -> PreparedData:
    return prepare(data, own_corpus(data.card, {split: [pair] for split, pair in files.items()}), **more)


def as_given(tables: Mapping[str, Path]) -> dict[str, list[list[Path]]]:
    """Return one table for each split as :func:`own_corpus` takes them."""
    return {split: [[table]] for split, table in tables.items()}


def prepare_tables(
    data: LabelledSection, *, tables: Mapping[str, Path], text: Sequence[str], extra: Sequence[str] = (), **more: Any
) -> PreparedData:
    """Prepare tables with a column ``label``."""
    corpus = own_corpus(data.card, as_given(tables), labelled=True, text=text, label="label", extra=extra)
    return prepare(data, corpus, **more)
