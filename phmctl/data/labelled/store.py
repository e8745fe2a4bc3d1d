"""Prepared labelled text on disk: Arrow files that are mapped, with their tokenizer, vectors, and a manifest.

A prepared folder holds ``manifest.json``, ``tokenizer.json``, an Arrow file a split, and ``vectors.safetensors`` where
word vectors were given. The columns are ``first`` and, for pairs, ``second`` (token ids), ``label`` (the number of the
class), the extras (whole numbers, -1 where they are not known), and for all splits but train the texts themselves.
"""

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from phmctl.data.arrow import Ragged, RowWriter, ragged, reading_columns
from phmctl.data.prepared.folder import corpus_name, is_card, root_option
from phmctl.data.prepared.manifest import read_manifest, refuse_damage
from phmctl.data.prepared.mapped import MappedSplit, PreparedFolder
from phmctl.data.tokenizer import JOINT_FILE, Tokenizer
from phmctl.errors import DataError
from phmctl.recipe.schema import LabelledSection

TASK = "classification"
VECTORS_FILE = "vectors.safetensors"
SIDES = ("first", "second")

Ints = npt.NDArray[np.int64]


def labelled_folder(data: LabelledSection, root: Path) -> Path:
    """Return where the labelled data of these settings lies once prepared.

    Raises:
        DataError: the corpus' name cannot be a folder's.
    """
    name = f"labelled-{data.tokenizer}-{data.vocabulary}-{data.max_tokens}"
    return root / "prepared" / corpus_name(data.card) / name


def labelled_command(data: LabelledSection, root: Path | None = None) -> str:
    """Return the command that prepares the data of these settings in a data folder, by default the default one."""
    tables = "" if is_card(data.card) else " --table train=FILE --table valid=FILE --text COLUMN --label COLUMN"
    return (
        f"phmctl prepare-data {data.card} --tokenizer {data.tokenizer} --vocabulary {data.vocabulary} "
        f"--max-tokens {data.max_tokens}{tables}{root_option(root)}"
    )


def labelled_sizes(data: LabelledSection, root: Path) -> tuple[int, int] | None:
    """Return the sizes of the trained tokenizer and of the label set; None where the data is not prepared.

    Raises:
        DataError: it is damaged.
    """
    manifest = read_manifest(labelled_folder(data, root))
    return None if manifest is None else (manifest["token_types"]["text"], len(manifest["labels"]))


class LabelledSplit(MappedSplit):
    """One split of prepared labelled text, mapped from its Arrow file.

    Args:
        path: the ``.arrow`` file.
        extras: the names of the extras.

    Attributes:
        first: the token ids of the first text of each example.
        second: of the second; None where an example is one text.
        labels: (N,) int64, the numbers of the classes.
        extras: (N,) int64 each, -1 where the value is not known.

    Raises:
        DataError: the file is missing or damaged.
    """

    def __init__(self, path: Path, extras: list[str]) -> None:
        super().__init__(path)
        with reading_columns(path):
            self.first: Ragged = ragged(self._table.column("first"))
            pair = "second" in self._table.column_names
            self.second: Ragged | None = ragged(self._table.column("second")) if pair else None
            self.labels: Ints = self._numbers("label")
            self.extras: dict[str, Ints] = {name: self._numbers(name) for name in extras}

    @cached_property
    def first_text(self) -> list[str]:
        """The first texts of valid or test, cased.

        Raises:
            DataError: train keeps no text.
        """
        return self._text("first_text")

    @cached_property
    def second_text(self) -> list[str] | None:
        """The second texts of valid or test; None where an example is one text.

        Raises:
            DataError: train keeps no text.
        """
        return None if self.second is None else self._text("second_text")

    def _numbers(self, column: str) -> Ints:
        numbers: Ints = self._table.column(column).to_numpy().astype(np.int64)
        return numbers


class LabelledData(PreparedFolder[LabelledSection, LabelledSplit]):
    """A prepared labelled corpus.

    Attributes:
        folder: where it lies.
        manifest: settings, sources with SHA-256, counts; the content of ``manifest.json``.
        tokenizer: of all texts.
        labels: the classes, in the order of their numbers.
        texts: how many texts an example has, 1 or 2.
        command: what prepares it.
    """

    tokenizer_files = (JOINT_FILE,)
    place = staticmethod(labelled_folder)
    command_of = staticmethod(labelled_command)

    def __init__(self, folder: Path, manifest: dict[str, Any], command: str) -> None:
        super().__init__(folder, manifest, command)
        self.tokenizer = Tokenizer.load(folder / JOINT_FILE)
        self.labels: list[str] = list(manifest["labels"])
        self.texts: int = manifest["texts"]

    @cached_property
    def vectors(self) -> Tensor | None:
        """The word vectors, (vocabulary, width) float32; None where the data was prepared without.

        Raises:
            DataError: their file is damaged.
        """
        if not self.manifest.get("vectors"):
            return None
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        refuse_damage(self.folder, self.manifest, VECTORS_FILE, self.command)
        path = self.folder / VECTORS_FILE
        try:
            vectors: Tensor = load_file(path)["vectors"]
        except (OSError, SafetensorError, LookupError) as error:
            raise DataError(f"{path} cannot be read ({error}); run: {self.command} --force") from error
        return vectors

    def _mapped(self, path: Path) -> LabelledSplit:
        return LabelledSplit(path, self.manifest["extras"])

    @classmethod
    def _check(cls, folder: Path, manifest: Mapping[str, Any]) -> None:
        if manifest.get("task") != TASK or "labels" not in manifest or "texts" not in manifest:
            raise DataError(f"{folder} holds no labelled text: it was prepared for another task")


class LabelledWriter(RowWriter):
    """Writes one split's Arrow file; a row is the token ids of each text, the label, the extras, the texts.

    Args:
        path: the ``.arrow`` file.
        texts: how many texts an example has.
        extras: the names of the extras.
        with_text: whether to keep the texts beside the tokens.

    Raises:
        OutputError: the file cannot be written.
    """

    def __init__(self, path: Path, texts: int, extras: list[str], *, with_text: bool) -> None:
        from datasets import Sequence, Value

        columns: dict[str, Any] = {side: Sequence(Value("int32")) for side in SIDES[:texts]}
        columns |= {name: Value("int32") for name in ("label", *extras)}
        if with_text:
            columns |= {f"{side}_text": Value("string") for side in SIDES[:texts]}
        super().__init__(path, columns)


def coverage_of(manifest: Mapping[str, Any]) -> str:
    """Return in words how much of the text has a vector; empty where there are none."""
    vectors = manifest.get("vectors")
    if not vectors:
        return ""
    tokens = ", ".join(f"{share:.1%} of {split}" for split, share in vectors["tokens"].items())
    return (
        f"{vectors['width']}-dimensional vectors of {vectors['file']} for {vectors['covered']:,} of "
        f"{vectors['types']:,} token types; of the tokens {tokens}"
    )
