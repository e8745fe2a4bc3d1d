"""Prepared data on disk: memory-mapped Arrow files, tokenizers and a manifest.

A prepared folder contains ``manifest.json``, ``tokenizer.json`` (or one for each side), an Arrow file for each split,
which ``datasets.Dataset.from_file`` can open, and optionally ``vectors.safetensors`` with word vectors. The columns are
token ids (``source`` and ``target`` of parallel text, ``first`` and ``second`` of labelled text), ``label`` (the number
of the class), the extras (integers, -1 if unknown), and in all splits but train the texts. The manifest records the
SHA-256 of each file, which is verified before the file is used.
"""

import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from phmctl.console import note
from phmctl.data import PAD, SPECIAL_TOKENS
from phmctl.data.card import load_card
from phmctl.data.readers import read_lines
from phmctl.data.tokenizer import JOINT_FILE, SIDE_FILES, TokenizerPair
from phmctl.errors import DataError, nearest
from phmctl.recipe.documents import change
from phmctl.recipe.loading import expect
from phmctl.recipe.schema import RECIPES, LabelledSection, ParallelSection, Recipe
from phmctl.shipped import shipped_names
from phmctl.storage import FORMAT, read_seal, verify, write_atomic, writing

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"
_CORPUS_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,119}")
# A word can end in a space and an integer ("sept 11"). A number of this form belongs to the vector instead.
_REAL = re.compile(r"[-+]?(?:[0-9]*\.[0-9]+(?:[eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a prepared folder's manifest. Raises DataError if it is missing, damaged or of another version."""
    path = folder / MANIFEST
    remedy = f"move {folder} away and prepare the data again"  # phmctl replaces only a folder whose manifest is whole
    manifest = read_seal(path, DataError, remedy)
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path} is of another version of phmctl: {remedy}")
    return manifest


TASK = "classification"  # "task" in the manifest of labelled text
VECTORS_FILE = "vectors.safetensors"

Section = ParallelSection | LabelledSection
SectionT = TypeVar("SectionT", bound=ParallelSection | LabelledSection)


def corpus_name(card: str) -> str:
    """Return the name of a corpus: a card's id, or the stem of its file. Raises DataError for an invalid name."""
    path = Path(card)
    name = path.stem if path.suffix in {".yaml", ".yml"} else card
    if not _CORPUS_NAME.fullmatch(name):
        raise DataError(f"{card!r} cannot name a corpus. Use up to 120 letters, digits, dots, hyphens and underscores")
    return name


def is_card(name: str) -> bool:
    """Return whether a name refers to a card, shipped or a file, rather than to a user's own corpus."""
    return name in shipped_names("cards") or name != corpus_name(name)


def data_root(folder: str | Path | None = None) -> Path:
    """Return the folder of raw and prepared data: `folder`, otherwise ``$PHMCTL_DATA``, otherwise ``data``."""
    return Path(folder or os.environ.get("PHMCTL_DATA") or "data")


def prepared_folder(data: Section, root: Path) -> Path:
    """Return the folder in which data with these settings is prepared. Raises DataError for an invalid corpus name."""
    parts = [data.tokenizer, str(data.vocabulary)]
    if isinstance(data, LabelledSection):
        parts = ["labelled", *parts, str(data.max_tokens)]
    else:
        if data.joint:
            parts.append("joint")
        parts.append(str(data.max_tokens))
        if data.direction == "reverse":
            parts.append("reverse")
        if data.copies:
            parts.append("copies")
    return root / "prepared" / corpus_name(data.card) / "-".join(parts)


def prepare_command(data: Section, root: Path | None = None) -> str:
    """Return the command that prepares data with these settings in the data folder `root`."""
    parts = ["phmctl prepare-data", shlex.quote(data.card)]
    if not is_card(data.card) or data != choose_section(data.card, type(data)):
        parts.append(f"--tokenizer {data.tokenizer} --vocabulary {data.vocabulary} --max-tokens {data.max_tokens}")
        if isinstance(data, ParallelSection):
            flags = {"--joint": data.joint, "--separate": not data.joint, "--copies": data.copies}
            parts += [flag for flag, given in flags.items() if given]
            parts += ["--reverse"] if data.direction == "reverse" else []
    if not is_card(data.card):
        tables = "--table train=FILE --table valid=FILE --text COLUMN --label COLUMN"
        files = "--train SRC --train TGT --valid SRC --valid TGT --test SRC --test TGT"
        parts.append(files if isinstance(data, ParallelSection) else tables)
    if root is not None and root != data_root():
        parts.append(f"--data {shlex.quote(str(root))}")
    return " ".join(parts)


def choose_section(
    card: str,
    section: type[SectionT],
    recipe: Recipe | None = None,
    changes: Mapping[str, object] = MappingProxyType({}),
) -> SectionT:
    """Return the data section of a recipe, or else of the card's settings and the defaults, with these changes.

    Raises DataError, and RecipeError if the recipe has another task.
    """
    base: Any = section(card=card)
    if recipe is None and is_card(card):
        changes = {**{str(key): value for key, value in load_card(card).defaults.items()}, **changes}
    elif recipe is not None:
        if not isinstance(recipe.data, section):
            expect(recipe, next(cls for cls in RECIPES.values() if cls.model_fields["data"].annotation is section))
        base = recipe.data.model_copy(update={"card": card})
    chosen: SectionT = change(base, changes, DataError)
    return chosen


def trained_sizes(data: Section, root: Path) -> tuple[int, int] | None:
    """Return the vocabulary sizes of source and target, or of the text and the label set, or None if not prepared."""
    folder = prepared_folder(data, root)
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_manifest(folder)
    sizes = [*manifest["token_types"].values(), len(manifest.get("labels", ()))]
    return sizes[0], sizes[1]


# ------------------------------------------------------------------------------------------------- Arrow files

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float32]
ROWS = 1 << 18  # rows of a record batch
PARALLEL, LABELLED = ("source", "target"), ("first", "second")  # columns of token ids
Tokens = npt.NDArray[np.int32]

_NO_TOKENS: Tokens = np.empty(0, np.int32)


class Ragged:
    """N sequences of token ids, stored in chunks of consecutive rows. Each chunk has flat values and offsets."""

    def __init__(self, chunks: Sequence[tuple[Tokens, npt.NDArray[np.integer[Any]]]]) -> None:
        self._values = [values for values, _ in chunks]
        lengths = [np.diff(offsets.astype(np.int64)) for _, offsets in chunks]
        self.lengths: Ints = np.concatenate([np.empty(0, np.int64), *lengths])
        self.offsets: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        self._bounds: Ints = np.cumsum([0, *(len(values) for values in self._values)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Tokens:
        return self.gather(np.array([row]))

    @cached_property
    def values(self) -> Tokens:
        """All tokens in one array: memory-mapped if the file has one chunk (up to 262,144 rows), otherwise a copy."""
        return self._values[0] if len(self._values) == 1 else np.concatenate([_NO_TOKENS, *self._values])

    def gather(self, rows: npt.NDArray[np.integer[Any]]) -> Tokens:
        """Return the concatenated tokens of some rows."""
        lengths = self.lengths[rows]
        total = int(lengths.sum())
        starts = np.cumsum(lengths) - lengths  # position of each row in the result
        positions = np.repeat(self.offsets[:-1][rows] - starts, lengths) + np.arange(total)
        if len(self._values) == 1:
            return self._values[0][positions]
        tokens = np.empty(total, np.int32)
        chunks = np.searchsorted(self._bounds, positions, side="right") - 1
        for chunk in np.unique(chunks):
            mask = chunks == chunk
            tokens[mask] = self._values[chunk][positions[mask] - self._bounds[chunk]]
        return tokens


def write_split(
    path: Path,
    chunks: Iterable[Sequence[Sequence[Any]]],
    columns: Sequence[str] = PARALLEL,
    numbers: Sequence[str] = (),
    *,
    with_text: bool,
) -> None:
    """Write the Arrow file of a split in record batches of :data:`ROWS` rows, so that memory stays bounded.

    A row contains the token ids for the `columns`, the integers for the `numbers`, and the texts, which are only
    written `with_text`.
    """
    import datasets
    import pyarrow as pa

    features: dict[str, Any] = {side: datasets.Sequence(datasets.Value("int32")) for side in columns}
    features |= {name: datasets.Value("int32") for name in numbers}
    features |= {f"{side}_text": datasets.Value("string") for side in columns if with_text}
    schema = datasets.Features(features).arrow_schema

    def batches() -> Iterator[Any]:
        pending: list[Any] = []
        for rows in chunks:
            arrays = [pa.array([row[index] for row in rows], dtype) for index, dtype in enumerate(schema.types)]
            pending.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
            if sum(batch.num_rows for batch in pending) >= ROWS:
                yield pa.Table.from_batches(pending).combine_chunks()
                pending = []
        if pending:
            yield pa.Table.from_batches(pending).combine_chunks()

    with writing(path), path.open("wb") as handle, pa.ipc.new_stream(handle, schema) as stream:
        for table in batches():
            stream.write_table(table)


class Split:
    """A split of prepared text, memory-mapped from its Arrow file: token ids of each side, labels and extras (N,).

    The file is not verified. Damaged offsets would crash the process, so :meth:`PreparedData.split` checks the SHA-256.
    """

    def __init__(self, path: Path, extras: list[str] | None = None) -> None:
        self.path = path
        import pyarrow as pa

        self._table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
        names = self._table.column_names
        parallel = "first" not in names
        self._columns = PARALLEL if parallel else [name for name in LABELLED if name in names]
        self.sides: tuple[Ragged, ...] = tuple(map(self._lists, self._columns))
        self.labels: Ints | None = None if parallel else self._numbers("label")
        self.extras: dict[str, Ints] = {name: self._numbers(name) for name in extras or ()}

    def __len__(self) -> int:
        return int(self._table.num_rows)

    @property
    def source(self) -> Ragged:
        return self.sides[0]

    @property
    def target(self) -> Ragged:
        return self.sides[1]

    @cached_property
    def texts(self) -> tuple[list[str], ...]:
        """The cleaned lines of each side of valid or test. Raises DataError for train, whose text is not stored."""
        if f"{self._columns[0]}_text" not in self._table.column_names:
            raise DataError(f"{self.path.name} contains only tokens. Text is stored for valid and test")
        return tuple(self._table.column(f"{name}_text").to_pylist() for name in self._columns)

    def _lists(self, column: str) -> Ragged:
        chunks = self._table.column(column).chunks
        return Ragged(
            [
                (chunk.values.to_numpy(zero_copy_only=True), chunk.offsets.to_numpy(zero_copy_only=True))
                for chunk in chunks
            ]
        )

    def _numbers(self, column: str) -> Ints:
        numbers: Ints = self._table.column(column).to_numpy().astype(np.int64)
        return numbers


class PreparedData:
    """A prepared corpus. Error messages name the `command` that prepares it."""

    def __init__(self, folder: Path, command: str = "phmctl prepare-data NAME") -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.command = command
        self.labels: list[str] = list(self.manifest.get("labels", ()))  # in the order of their numbers
        self.texts: int = self.manifest.get("texts", 2)
        self._splits: dict[str, Split] = {}

    @classmethod
    def find(cls, data: Section, root: Path) -> "PreparedData":
        """Open the data of a recipe's section. Raises DataError if it is not prepared or damaged."""
        folder = prepared_folder(data, root)
        command = prepare_command(data, root)
        if not (folder / MANIFEST).exists():
            prepared_names = sorted(path.parent.name for path in folder.parent.glob("*/manifest.json"))
            hint = ""
            if prepared_names:
                hint = f" (it is prepared in {', '.join(prepared_names)}, for other settings or another task)"
            elif not is_card(data.card):
                hint = nearest(
                    data.card, [*(path.name for path in (root / "prepared").glob("[!.]*")), *shipped_names("cards")]
                )
            raise DataError(f"{data.card} is not prepared in {folder}{hint}. Run: {command}")
        return cls(folder, command)

    def _verify(self, *names: str) -> None:
        """Raise DataError if one of these files has changed, or exists although the manifest does not list it."""
        verify(self.folder, self.manifest["files"], DataError, f"run: {self.command} --force", names)

    @cached_property
    def tokenizers(self) -> TokenizerPair:
        self._verify(JOINT_FILE, *SIDE_FILES)
        return TokenizerPair.load(self.folder)

    @property
    def splits(self) -> list[str]:
        return list(self.manifest["splits"])

    def split(self, name: str) -> Split:
        if name not in self.splits:
            raise DataError(f"no split {name!r}{nearest(name, self.splits)}. There are {', '.join(self.splits)}")
        if name not in self._splits:
            self._verify(f"{name}.arrow")
            self._splits[name] = Split(self.folder / f"{name}.arrow", self.manifest.get("extras"))
        return self._splits[name]

    @cached_property
    def vectors(self) -> "Tensor | None":
        """The word vectors, (vocabulary, width) float32, or None if the data was prepared without."""
        if not self.manifest.get("vectors"):
            return None
        from safetensors.torch import load_file

        self._verify(VECTORS_FILE)
        vectors: Tensor = load_file(self.folder / VECTORS_FILE)["vectors"]
        return vectors

    @property
    def coverage(self) -> str:
        """A description of the share of the text with word vectors, empty if the data was prepared without."""
        if not (vectors := self.manifest.get("vectors")):
            return ""
        tokens = ", ".join(f"{share:.1%} of {split}" for split, share in vectors["tokens"].items())
        return (
            f"{vectors['width']}-dimensional vectors of {vectors['file']} for {vectors['covered']:,} of "
            f"{vectors['types']:,} token types, and for {tokens}"
        )


# ---------------------------------------------------------------------------------------------------- word vectors


def write_vectors(folder: Path, path: Path, vocabulary: Sequence[str], splits: Sequence[str]) -> dict[str, Any]:
    """Write the word vectors of the vocabulary. Return their entry of the manifest."""
    import torch
    from safetensors.torch import save

    note(f"reading {path} ...")
    table, covered = read_vectors(path, vocabulary)
    write_atomic(folder / VECTORS_FILE, save({"vectors": torch.from_numpy(table)}))
    shares = {}
    for name in splits:
        sides = [side.values for side in Split(folder / f"{name}.arrow").sides]
        total = sum(map(len, sides))
        shares[name] = round(sum(int(covered[side].sum()) for side in sides) / total, 6) if total else 0.0
    return {
        "file": path.name,
        "width": table.shape[1],
        "covered": int(covered.sum()),
        "types": len(vocabulary) - len(SPECIAL_TOKENS),
        "tokens": shares,
    }


def read_vectors(path: Path, vocabulary: Sequence[str]) -> tuple[Floats, npt.NDArray[np.bool_]]:
    """Return the vectors of a word tokenizer's vocabulary, (V, d), and whether the file has each token type, (V,).

    If the file lacks a word, its lower-case form is used, or else the mean of the other vectors. PAD is zero. The
    format is GloVe's: on each line a word and its numbers, plain or ``.gz``. A first line of two integers (word2vec's
    header) is skipped.
    """
    words = [token.strip() for token in vocabulary[len(SPECIAL_TOKENS) :]]
    by_word: dict[str, Floats] = {}
    for word, numbers in _rows_of_words(path, {*words, *map(str.lower, words)}):
        by_word.setdefault(word, numbers)
    vectors: list[Floats | None] = [None] * len(SPECIAL_TOKENS)
    vectors += [by_word.get(word, by_word.get(word.lower())) for word in words]
    known = [vector for vector in vectors if vector is not None]
    if not known:
        raise DataError(f"{path} lacks all {len(vocabulary):,} words of the vocabulary. Is it a file of word vectors?")
    mean = np.stack(known).mean(axis=0, dtype=np.float64).astype(np.float32)
    table = np.stack([mean if vector is None else vector for vector in vectors])  # (V, d)
    table[PAD] = 0
    covered = np.array([vector is not None for vector in vectors])
    return table, covered


def _rows_of_words(path: Path, words: set[str]) -> Iterator[tuple[str, Floats]]:
    """Yield the vectors of these words in the order of the file. The width of all rows is checked."""
    width = 0
    for number, line in enumerate(read_lines(path), start=1):
        text = line.rstrip(" ")
        if number == 1 and re.fullmatch(r"[0-9]+ [0-9]+", text):
            continue
        width = width or text.count(" ")
        word, *numbers = text.rsplit(" ", width)  # words of GloVe's 840B release contain spaces
        if len(numbers) < max(width, 1) or (" " in word and _REAL.fullmatch(word.rpartition(" ")[2])):
            raise DataError(
                f"{path}, line {number}: {text.count(' ')} numbers after the word, but the first row has {width}. "
                "Check that the file is complete and all vectors have one width"
            )
        if word not in words:
            continue
        try:
            with np.errstate(over="ignore"):
                values = np.array(numbers, np.float32)
        except ValueError:
            values = np.full(1, np.nan, np.float32)  # refused below
        if not np.isfinite(values).all():
            raise DataError(f"{path}, line {number}: not all fields after the word are finite numbers")
        yield word, values
