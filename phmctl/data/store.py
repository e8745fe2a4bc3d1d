"""Prepared data on disk: Arrow files that are mapped, not read, with their tokenizers and a manifest.

A prepared folder holds ``manifest.json``, ``tokenizer.json`` (or one a side) and ``train.arrow``, ``valid.arrow``,
``test.arrow``, which ``datasets.Dataset.from_file`` opens. Their columns are ``source`` and ``target`` (token ids), and
for valid and test the text itself. The manifest has each file's SHA-256, which is compared before the file is used.
"""

import os
import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from phmctl.data.tokenization import JOINT_FILE, SIDE_FILES, TokenizerPair
from phmctl.errors import DataError, nearest
from phmctl.files import are_file_entries, damage, read_json_object, writing
from phmctl.recipe.schema import DataSection
from phmctl.shipped import shipped_names

MANIFEST = "manifest.json"
FORMAT = "phmctl-prepared-1"
ROWS = 1 << 18  # of a record batch
_KEYS = ("settings", "token_types", "splits", "files")  # of a manifest, at least

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_NONE: Tokens = np.empty(0, np.int32)


def data_root() -> Path:
    """Return the folder for raw and prepared data: ``$PHMCTL_DATA``, or ``data`` in the current folder."""
    return Path(os.environ.get("PHMCTL_DATA") or "data")


def prepared_folder(data: DataSection, root: Path) -> Path:
    """Return where the data of these settings lies once prepared.

    Raises:
        DataError: the corpus' name cannot be a folder's.
    """
    joint = "-joint" if data.joint else ""
    name = corpus_name(data.card)
    return root / "prepared" / name / f"{data.tokenizer}-{data.vocabulary}{joint}-{data.max_tokens}"


def corpus_name(card: str) -> str:
    """Return a corpus' name: the card's id, or the stem of its file.

    Raises:
        DataError: the name cannot be a folder's.
    """
    path = Path(card)
    name = path.stem if path.suffix in {".yaml", ".yml"} else card
    if not _NAME.fullmatch(name):
        raise DataError(f"{card!r} cannot name a corpus; use letters, digits, dots, hyphens and underscores")
    return name


def prepare_command(data: DataSection) -> str:
    """Return the command that prepares the data of these settings."""
    joint = "--joint" if data.joint else "--separate"
    known = data.card in shipped_names("cards") or data.card != corpus_name(data.card)
    files = "" if known else " --train SRC TGT --valid SRC TGT --test SRC TGT"
    return (
        f"phmctl prepare-data {data.card} --tokenizer {data.tokenizer} --vocabulary {data.vocabulary} {joint} "
        f"--max-tokens {data.max_tokens}{files}"
    )


def trained_vocabularies(data: DataSection, root: Path) -> tuple[int, int] | None:
    """Return the sizes of the trained tokenizers, (source, target); None where the data is not prepared.

    Raises:
        DataError: it is damaged.
    """
    manifest = read_manifest(prepared_folder(data, root))
    return None if manifest is None else (manifest["token_types"]["source"], manifest["token_types"]["target"])


class Ragged:
    """N sequences of token ids, held flat. Rows are views of the mapped file.

    Args:
        chunks: (values int32, offsets of length rows + 1) of consecutive rows.
    """

    def __init__(self, chunks: Sequence[tuple[Tokens, npt.NDArray[np.integer[Any]]]]) -> None:
        self._values = [values for values, _ in chunks]
        sizes = [np.diff(offsets.astype(np.int64)) for _, offsets in chunks]
        self.lengths: Ints = np.concatenate([np.empty(0, np.int64), *sizes])
        self.offsets: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        self._bounds: Ints = np.cumsum([0, *(len(values) for values in self._values)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Tokens:
        """Return one row's tokens, a view."""
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        start, end = int(self.offsets[row]), int(self.offsets[row + 1])
        chunk = self._chunk_of(start)
        base = int(self._bounds[chunk])
        return self._values[chunk][start - base : end - base] if chunk >= 0 else _NONE

    @cached_property
    def values(self) -> Tokens:
        """All tokens in one array; mapped when the file has one chunk (up to 262,144 rows), otherwise a copy."""
        return self._values[0] if len(self._values) == 1 else np.concatenate([_NONE, *self._values])

    def gather(self, rows: npt.NDArray[np.integer[Any]]) -> Tokens:
        """Return the tokens of some rows, one row after another."""
        lengths = self.lengths[rows]
        total = int(lengths.sum())
        before = np.cumsum(lengths) - lengths  # tokens of the rows in front
        places = np.repeat(self.offsets[rows] - before, lengths) + np.arange(total)
        if len(self._values) == 1:
            return self._values[0][places]
        tokens = np.empty(total, np.int32)
        owner = np.searchsorted(self._bounds, places, side="right") - 1
        for chunk in np.unique(owner):
            here = owner == chunk
            tokens[here] = self._values[chunk][places[here] - self._bounds[chunk]]
        return tokens

    def _chunk_of(self, place: int) -> int:
        """Return the chunk that holds a token; for an empty row at the very end, the last one."""
        chunk = int(np.searchsorted(self._bounds, place, side="right")) - 1
        return min(chunk, len(self._values) - 1)


class ParallelSplit:
    """One split of prepared data, mapped from its Arrow file.

    Args:
        path: the ``.arrow`` file.

    Raises:
        DataError: the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        import datasets
        import pyarrow as pa

        self.path = path
        self.name = path.stem
        try:
            table = datasets.Dataset.from_file(str(path)).data
        except (OSError, pa.ArrowException) as error:
            raise DataError(f"cannot read {path}: {error}; prepare the data again with --force") from error
        self._table = table
        self.source = _ragged(table.column("source"))
        self.target = _ragged(table.column("target"))

    def __len__(self) -> int:
        return len(self.source)

    @cached_property
    def source_text(self) -> list[str]:
        """The source lines of valid or test, cased.

        Raises:
            DataError: train keeps no text.
        """
        return self._text("source_text")

    @cached_property
    def target_text(self) -> list[str]:
        """The target lines of valid or test, cased: the references.

        Raises:
            DataError: train keeps no text.
        """
        return self._text("target_text")

    def _text(self, column: str) -> list[str]:
        if column not in self._table.column_names:
            raise DataError(f"{self.path.name} keeps no text, only tokens; text is kept of valid and test")
        lines: list[str] = self._table.column(column).to_pylist()
        return lines


class PreparedData:
    """A prepared corpus: splits, tokenizers and the manifest that says where they come from.

    Attributes:
        folder: where it lies.
        manifest: settings, sources with SHA-256, counts; the content of ``manifest.json``.
        tokenizers: of both sides.
        command: what prepares it.
    """

    def __init__(self, folder: Path, manifest: dict[str, Any], tokenizers: TokenizerPair, command: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.tokenizers = tokenizers
        self.command = command
        self._splits: dict[str, ParallelSplit] = {}

    @classmethod
    def open(cls, folder: Path, command: str | None = None) -> "PreparedData":
        """Open a prepared folder.

        Args:
            folder: where it lies.
            command: what prepares it, for messages; by default it is read from the folder's name.

        Raises:
            DataError: nothing is prepared there (the message names the command that does it), or it is damaged.
        """
        command = command or _command_for(folder)
        manifest = read_manifest(folder)
        if manifest is None:
            raise DataError(f"{folder} holds no prepared data; run: {command}")
        for name in (JOINT_FILE, *SIDE_FILES):
            _refuse_damage(folder, manifest, name, command)
        return cls(folder, manifest, TokenizerPair.load(folder), command)

    @classmethod
    def find(cls, data: DataSection, root: Path) -> "PreparedData":
        """Open the prepared data of a recipe's data section.

        Raises:
            DataError: it is not prepared (the message names the command that does it), or it is damaged.
        """
        folder = prepared_folder(data, root)
        if read_manifest(folder) is None:
            raise DataError(f"{data.card} is not prepared in {folder}; run: {prepare_command(data)}")
        return cls.open(folder, prepare_command(data))

    def split(self, name: str) -> ParallelSplit:
        """Return the split ``train``, ``valid`` or ``test``. The first time, its file is read through to be checked.

        Raises:
            DataError: there is no such split, or its file is damaged.
        """
        known = self.manifest["splits"]
        if name not in known:
            raise DataError(f"no split {name!r}{nearest(name, known)}; there are {', '.join(known)}")
        if name not in self._splits:
            _refuse_damage(self.folder, self.manifest, f"{name}.arrow", self.command)
            self._splits[name] = ParallelSplit(self.folder / f"{name}.arrow")
        return self._splits[name]


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a prepared folder, or None where there is none.

    Raises:
        DataError: the manifest is damaged or of another version.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    manifest = read_json_object(path, DataError, "prepare the data again with --force")
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path} is not of this version of phmctl ({FORMAT}); prepare again with --force")
    if any(key not in manifest for key in _KEYS) or not are_file_entries(manifest["files"]):
        raise DataError(f"{path} is damaged: it does not say all it must; prepare the data again with --force")
    return manifest


def _refuse_damage(folder: Path, manifest: dict[str, Any], name: str, command: str) -> None:
    """Raise a DataError if the manifest lists this file and it is another now."""
    wrong = damage(folder, manifest["files"], name)
    if wrong:
        raise DataError(f"{folder / name} {wrong}; run: {command} --force")


def _command_for(folder: Path) -> str:
    """Return the command that would prepare a folder, from its path's own parts where they say so."""
    kind, vocabulary, *rest = [*folder.name.split("-"), ""]
    joint, length = rest[:1] == ["joint"], rest[-2] if len(rest) > 1 else ""
    if kind not in ("bpe", "word") or not vocabulary.isdigit() or not length.isdigit():
        return "phmctl prepare-data NAME"
    section = DataSection(
        card=folder.parent.name,
        tokenizer="bpe" if kind == "bpe" else "word",
        vocabulary=max(int(vocabulary), 8),
        joint=joint,
        max_tokens=max(int(length), 1),
    )
    return prepare_command(section)


def _ragged(column: Any) -> Ragged:
    """Return an Arrow column of lists as flat arrays, without a copy."""
    return Ragged(
        [
            (chunk.values.to_numpy(zero_copy_only=True), chunk.offsets.to_numpy(zero_copy_only=True))
            for chunk in column.chunks
        ]
    )


class SplitWriter:
    """Writes one split's Arrow file in record batches of :data:`ROWS` rows, so that memory stays bounded.

    A context: the file is finished and flushed to the disk when the block ends well.

    Args:
        path: the ``.arrow`` file.
        with_text: whether to keep the text beside the tokens.

    Raises:
        OutputError: the file cannot be written.
    """

    def __init__(self, path: Path, *, with_text: bool) -> None:
        import pyarrow as pa

        self._path = path
        self._schema = _schema(with_text)
        self._waiting: list[Any] = []  # record batches
        self._rows = 0
        with writing(path):
            self._handle = path.open("wb")
            self._stream = pa.ipc.new_stream(self._handle, self._schema)

    def __enter__(self) -> "SplitWriter":
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self._handle:
            if kind is None:
                self._finish()

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows: source ids, target ids, source text, target text; the text is left where none is kept."""
        import pyarrow as pa

        arrays = [pa.array([row[index] for row in rows], kind) for index, kind in enumerate(self._schema.types)]
        self._waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows += len(rows)
        if self._rows >= ROWS:
            self._flush()

    def _finish(self) -> None:
        self._flush()
        with writing(self._path):
            self._stream.close()
            self._handle.flush()
            os.fsync(self._handle.fileno())

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            table = pa.Table.from_batches(self._waiting, schema=self._schema).combine_chunks()
            with writing(self._path):
                self._stream.write_table(table)
        self._waiting, self._rows = [], 0


def _schema(with_text: bool) -> Any:
    """Return the Arrow schema of a split, with the column types that ``datasets`` reads from it."""
    from datasets import Features, Sequence, Value

    columns: dict[str, Any] = {side: Sequence(Value("int32")) for side in ("source", "target")}
    if with_text:
        columns |= {f"{side}_text": Value("string") for side in ("source", "target")}
    return Features(columns).arrow_schema
