"""Prepared data on disk: Arrow files that are mapped, not read, with their tokenizers and a manifest.

A prepared folder holds ``manifest.json``, ``tokenizer.json`` (or one a side) and ``train.arrow``, ``valid.arrow``,
``test.arrow``, which ``datasets.Dataset.from_file`` opens. Their columns are ``source`` and ``target`` (token ids), and
for valid and test the text itself. The manifest has each file's SHA-256, which is compared before the file is used.
"""

import os
import re
import shlex
from functools import cached_property
from pathlib import Path
from typing import Any

from phmctl.data.arrow import RowWriter, ragged, reading_columns
from phmctl.data.prepared.manifest import read_manifest
from phmctl.data.prepared.mapped import UNKNOWN_COMMAND, MappedSplit, PreparedFolder
from phmctl.data.tokenizer import JOINT_FILE, SIDE_FILES, TokenizerPair
from phmctl.errors import DataError
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
    turned = "-reverse" if data.direction == "reverse" else ""
    name = corpus_name(data.card)
    return root / "prepared" / name / f"{data.tokenizer}-{data.vocabulary}{joint}-{data.max_tokens}{turned}"


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


def is_card(name: str) -> bool:
    """Return whether a corpus' name stands for a card, shipped or a file; otherwise it is a name for one's own files.

    Raises:
        DataError: the name cannot be a folder's.
    """
    return name in shipped_names("cards") or name != corpus_name(name)


def root_option(root: Path | None) -> str:
    """Return the option that names a data folder, after a blank; nothing for None and for the default one."""
    return "" if root is None or root == data_root() else f" --data {shlex.quote(str(root))}"


def prepare_command(data: ParallelSection, root: Path | None = None) -> str:
    """Return the command that prepares the data of these settings in a data folder, by default the default one."""
    joint = "--joint" if data.joint else "--separate"
    reverse = " --reverse" if data.direction == "reverse" else ""
    files = "" if is_card(data.card) else " --train SRC TGT --valid SRC TGT --test SRC TGT"
    return (
        f"phmctl prepare-data {data.card} --tokenizer {data.tokenizer} --vocabulary {data.vocabulary} {joint} "
        f"--max-tokens {data.max_tokens}{reverse}{files}{root_option(root)}"
    )


def trained_vocabularies(data: ParallelSection, root: Path) -> tuple[int, int] | None:
    """Return the sizes of the trained tokenizers, (source, target); None where the data is not prepared.

    Raises:
        DataError: it is damaged.
    """
    manifest = read_manifest(prepared_folder(data, root))
    return None if manifest is None else (manifest["token_types"]["source"], manifest["token_types"]["target"])


class ParallelSplit(MappedSplit):
    """One split of prepared sentence pairs, mapped from its Arrow file.

    Args:
        path: the ``.arrow`` file.

    Attributes:
        source: the token ids of each pair's source side.
        target: of its target side.

    Raises:
        DataError: the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        with reading_columns(path):
            self.source = ragged(self._table.column("source"))
            self.target = ragged(self._table.column("target"))

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


class PreparedData(PreparedFolder[ParallelSection, ParallelSplit]):
    """A prepared parallel corpus: splits, tokenizers and the manifest that says where they come from.

    Attributes:
        folder: where it lies.
        manifest: settings, sources with SHA-256, counts; the content of ``manifest.json``.
        tokenizers: of both sides.
        command: what prepares it.
    """

    tokenizer_files = (JOINT_FILE, *SIDE_FILES)
    place = staticmethod(prepared_folder)
    command_of = staticmethod(prepare_command)

    def __init__(self, folder: Path, manifest: dict[str, Any], command: str) -> None:
        super().__init__(folder, manifest, command)
        self.tokenizers = TokenizerPair.load(folder)

    def _mapped(self, path: Path) -> ParallelSplit:
        return ParallelSplit(path)

    @classmethod
    def _command_for(cls, folder: Path) -> str:
        return _command_for(folder)


def _command_for(folder: Path) -> str:
    """Return the command that would prepare a folder, from its path's own parts where they say so."""
    name = folder.name.removesuffix("-reverse")
    kind, vocabulary, *rest = [*name.split("-"), ""]
    joint, length = rest[:1] == ["joint"], rest[-2] if len(rest) > 1 else ""
    if kind not in ("bpe", "word") or not vocabulary.isdigit() or not length.isdigit():
        return UNKNOWN_COMMAND
    section = ParallelSection(
        card=folder.parent.name,
        tokenizer="bpe" if kind == "bpe" else "word",
        vocabulary=max(int(vocabulary), 8),
        joint=joint,
        direction="forward" if name == folder.name else "reverse",
        max_tokens=max(int(length), 1),
    )
    above = folder.parent.parent
    return prepare_command(section, above.parent if above.name == "prepared" else None)


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
