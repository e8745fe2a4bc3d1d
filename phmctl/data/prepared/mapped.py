"""A prepared folder and its splits, as far as they are the same whatever is learned from the text.

:class:`phmctl.data.prepared.folder.PreparedData` holds parallel text, labelled text is in
:class:`phmctl.data.labelled.store.LabelledData`.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from phmctl.data.arrow import read_table
from phmctl.data.prepared.manifest import read_manifest, refuse_damage
from phmctl.errors import DataError, nearest
from phmctl.recipe.schema import CorpusSection

UNKNOWN_COMMAND = "phmctl prepare-data NAME"


class MappedSplit:
    """One split of prepared text, mapped from its Arrow file.

    Args:
        path: the ``.arrow`` file.

    Raises:
        DataError: the file is missing or damaged.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.name = path.stem
        self._table = read_table(path)

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def _text(self, column: str) -> list[str]:
        if column not in self._table.column_names:
            raise DataError(f"{self.path.name} keeps no text, only tokens; text is kept of valid and test")
        lines: list[str] = self._table.column(column).to_pylist()
        return lines


CorpusT = TypeVar("CorpusT", bound=CorpusSection)
SplitT = TypeVar("SplitT", bound=MappedSplit)


class PreparedFolder(ABC, Generic[CorpusT, SplitT]):
    """A prepared corpus: its splits, and the manifest that says where they come from.

    Args:
        folder: where it lies.
        manifest: settings, sources with SHA-256, counts; the content of ``manifest.json``.
        command: what prepares it, for messages.
    """

    tokenizer_files: ClassVar[tuple[str, ...]]  # those that may lie in the folder

    def __init__(self, folder: Path, manifest: dict[str, Any], command: str) -> None:
        self.folder = folder
        self.manifest = manifest
        self.command = command
        self._splits: dict[str, SplitT] = {}

    @staticmethod
    @abstractmethod
    def place(data: CorpusT, root: Path) -> Path:
        """Return where the data of these settings lies once prepared."""

    @staticmethod
    @abstractmethod
    def command_of(data: CorpusT, root: Path) -> str:
        """Return the command that prepares the data of these settings in a data folder."""

    @classmethod
    def open(cls, folder: Path, command: str | None = None) -> Self:
        """Open a prepared folder.

        Args:
            folder: where it lies.
            command: what prepares it, for messages; by default what the folder's name tells.

        Raises:
            DataError: nothing is prepared there (the message names the command that does it), or it is damaged.
        """
        command = command or cls._command_for(folder)
        manifest = read_manifest(folder)
        if manifest is None:
            raise DataError(f"{folder} holds no prepared data; run: {command}")
        cls._check(folder, manifest)
        for name in cls.tokenizer_files:
            refuse_damage(folder, manifest, name, command)
        return cls(folder, manifest, command)

    @classmethod
    def find(cls, data: CorpusT, root: Path) -> Self:
        """Open the prepared data of a recipe's data section.

        Raises:
            DataError: it is not prepared (the message names the command that does it), or it is damaged.
        """
        folder, command = cls.place(data, root), cls.command_of(data, root)
        if read_manifest(folder) is None:
            raise DataError(f"{data.card} is not prepared in {folder}; run: {command}")
        return cls.open(folder, command)

    @property
    def splits(self) -> list[str]:
        """The names of the splits, ``train`` and ``valid`` first."""
        return list(self.manifest["splits"])

    def split(self, name: str) -> SplitT:
        """Return a split by its name. The first time, its file is read through to be checked.

        Raises:
            DataError: there is no such split, or its file is damaged.
        """
        if name not in self.splits:
            raise DataError(f"no split {name!r}{nearest(name, self.splits)}; there are {', '.join(self.splits)}")
        if name not in self._splits:
            refuse_damage(self.folder, self.manifest, f"{name}.arrow", self.command)
            self._splits[name] = self._mapped(self.folder / f"{name}.arrow")
        return self._splits[name]

    @abstractmethod
    def _mapped(self, path: Path) -> SplitT:
        """Map a split's file."""

    @classmethod
    def _command_for(cls, folder: Path) -> str:
        """Return the command that prepares a folder, as far as its path tells."""
        return UNKNOWN_COMMAND

    @classmethod
    def _check(cls, folder: Path, manifest: Mapping[str, Any]) -> None:
        """Refuse (DataError) what was prepared for another task."""
