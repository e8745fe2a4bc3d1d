"""Prepared data on disk: Arrow files that are mapped, not read, with their tokenizers and a manifest.

A prepared folder holds ``manifest.json``, ``tokenizer.json`` (or one a side) and ``train.arrow``, ``valid.arrow``,
``test.arrow``, which ``datasets.Dataset.from_file`` opens. Their columns are ``source`` and ``target`` (token ids), and
for valid and test the text itself. The manifest has each file's SHA-256, which is compared before the file is used.
"""

import os
import re
from functools import cached_property
from pathlib import Path
from typing import Any

from phmctl.data.arrow import RowWriter, ragged, read_table
from phmctl.data.manifest import read_manifest, refuse_damage
from phmctl.data.tokenization import JOINT_FILE, SIDE_FILES, TokenizerPair
from phmctl.errors import DataError, nearest
from phmctl.recipe.schema import ParallelSection
from phmctl.shipped import shipped_names

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def data_root() -> Path:
    """Return the folder for raw and prepared data: ``$PHMCTL_DATA``, or ``data`` in the current folder."""
    return Path(os.environ.get("PHMCTL_DATA") or "data")


def prepared_folder(data: ParallelSection, root: Path) -> Path:
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


def prepare_command(data: ParallelSection) -> str:
    """Return the command that prepares the data of these settings."""
    joint = "--joint" if data.joint else "--separate"
    known = data.card in shipped_names("cards") or data.card != corpus_name(data.card)
    files = "" if known else " --train SRC TGT --valid SRC TGT --test SRC TGT"
    return (
        f"phmctl prepare-data {data.card} --tokenizer {data.tokenizer} --vocabulary {data.vocabulary} {joint} "
        f"--max-tokens {data.max_tokens}{files}"
    )


def trained_vocabularies(data: ParallelSection, root: Path) -> tuple[int, int] | None:
    """Return the sizes of the trained tokenizers, (source, target); None where the data is not prepared.

    Raises:
        DataError: it is damaged.
    """
    manifest = read_manifest(prepared_folder(data, root))
    return None if manifest is None else (manifest["token_types"]["source"], manifest["token_types"]["target"])


class ParallelSplit:
    """One split of prepared data, mapped from its Arrow file.

    Args:
        path: the ``.arrow`` file.

    Raises:
        DataError: the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self._table = read_table(path)
        self.source = ragged(self._table.column("source"))
        self.target = ragged(self._table.column("target"))

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
            refuse_damage(folder, manifest, name, command)
        return cls(folder, manifest, TokenizerPair.load(folder), command)

    @classmethod
    def find(cls, data: ParallelSection, root: Path) -> "PreparedData":
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
            refuse_damage(self.folder, self.manifest, f"{name}.arrow", self.command)
            self._splits[name] = ParallelSplit(self.folder / f"{name}.arrow")
        return self._splits[name]


def _command_for(folder: Path) -> str:
    """Return the command that would prepare a folder, from its path's own parts where they say so."""
    kind, vocabulary, *rest = [*folder.name.split("-"), ""]
    joint, length = rest[:1] == ["joint"], rest[-2] if len(rest) > 1 else ""
    if kind not in ("bpe", "word") or not vocabulary.isdigit() or not length.isdigit():
        return "phmctl prepare-data NAME"
    section = ParallelSection(
        card=folder.parent.name,
        tokenizer="bpe" if kind == "bpe" else "word",
        vocabulary=max(int(vocabulary), 8),
        joint=joint,
        max_tokens=max(int(length), 1),
    )
    return prepare_command(section)


class SplitWriter(RowWriter):
    """Writes one split's Arrow file; a row is source ids, target ids, source text, target text.

    Args:
        path: the ``.arrow`` file.
        with_text: whether to keep the text beside the tokens.

    Raises:
        OutputError: the file cannot be written.
    """

    def __init__(self, path: Path, *, with_text: bool) -> None:
        from datasets import Sequence, Value

        columns: dict[str, Any] = {side: Sequence(Value("int32")) for side in ("source", "target")}
        if with_text:
            columns |= {f"{side}_text": Value("string") for side in ("source", "target")}
        super().__init__(path, columns)
