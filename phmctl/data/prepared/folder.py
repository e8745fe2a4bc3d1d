"""Prepared data on disk: Arrow files that are mapped, not read, with their tokenizers and a manifest.

A prepared folder holds ``manifest.json``, ``tokenizer.json`` (or one a side), an Arrow file a split, which
``datasets.Dataset.from_file`` opens, and ``vectors.safetensors`` where word vectors were given. The columns are token
ids, ``source`` and ``target`` of parallel text, ``first`` and, for pairs, ``second`` of labelled text; with labels
``label`` (the number of the class) and the extras (whole numbers, -1 where they are not known); and for all splits but
train the texts themselves. The manifest has each file's SHA-256, which is compared before the file is used.
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from phmctl.console import Table
from phmctl.data.card import corpus_name, is_card
from phmctl.data.tokenizer import JOINT_FILE, SIDE_FILES, TokenizerPair
from phmctl.errors import DataError, nearest
from phmctl.files import FORMAT, read_seal, refuse_pipes, seal, verify, writing
from phmctl.recipe.models import PositiveInt
from phmctl.recipe.schema import LabelledSection, ParallelSection
from phmctl.shipped import shipped_names

if TYPE_CHECKING:
    from torch import Tensor

MANIFEST = "manifest.json"


class _Manifest(BaseModel):
    """What is asked of a manifest, whatever the task. There is more in it."""

    model_config = ConfigDict(strict=True)

    format: Literal[1]
    settings: dict[str, Any]
    token_types: dict[str, PositiveInt]
    splits: dict[str, dict[str, Any]]
    sources: list[dict[str, Any]] = []
    labels: list[str] = []
    texts: Annotated[int, Field(ge=1, le=2)] = 1
    extras: list[str] = []
    vectors: dict[str, Any] = {}


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest of a folder that is otherwise complete: the content, and size and SHA-256 of each file."""
    with writing(folder):
        seal(folder, MANIFEST, {"format": FORMAT, **content})


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return a prepared folder's manifest; raises DataError where there is none, or it is damaged."""
    path = folder / MANIFEST
    refuse_pipes(folder, DataError)
    manifest = read_seal(path, DataError, "prepare the data again with --force")
    try:
        _Manifest.model_validate(manifest)
    except ValidationError as error:
        wrong = ", ".join(sorted({str(problem["loc"][0]) for problem in error.errors()}))
        raise DataError(
            f"{path} is damaged, or of another version: look at {wrong}; prepare the data again with --force"
        ) from error
    return manifest


TASK = "classification"  # what the manifest of labelled text calls its task
VECTORS_FILE = "vectors.safetensors"

Section = ParallelSection | LabelledSection


def data_root() -> Path:
    """Return the folder for raw and prepared data: ``$PHMCTL_DATA``, or ``data`` in the current folder."""
    return Path(os.environ.get("PHMCTL_DATA") or "data")


def prepared_folder(data: Section, root: Path) -> Path:
    """Return where the data of these settings lies once prepared; raises DataError for a name that is no folder's."""
    name = f"{data.tokenizer}-{data.vocabulary}"
    if isinstance(data, LabelledSection):
        name = f"labelled-{name}-{data.max_tokens}"
    else:
        turned, doubled = "-reverse" * (data.direction == "reverse"), "-copies" * data.copies
        name = f"{name}{'-joint' * data.joint}-{data.max_tokens}{turned}{doubled}"
    return root / "prepared" / corpus_name(data.card) / name


def prepare_command(data: Section, root: Path | None = None) -> str:
    """Return the command that prepares the data of these settings in a data folder, by default the default one."""
    words = ["phmctl prepare-data", shlex.quote(data.card)]
    words += [f"--tokenizer {data.tokenizer} --vocabulary {data.vocabulary}"]
    own = "--table train=FILE --table valid=FILE --text COLUMN --label COLUMN"
    if not isinstance(data, LabelledSection):
        words.append("--joint" if data.joint else "--separate")
        own = "--train SRC TGT --valid SRC TGT --test SRC TGT"
    words.append(f"--max-tokens {data.max_tokens}")
    words += ["--reverse"] if getattr(data, "direction", "") == "reverse" else []
    words += ["--copies"] if getattr(data, "copies", False) else []
    words += [] if is_card(data.card) else [own]
    words += [] if root is None or root == data_root() else [f"--data {shlex.quote(str(root))}"]
    return " ".join(words)


def trained_sizes(data: Section, root: Path) -> tuple[int, int] | None:
    """Return the sizes of the vocabularies, (source, target), or of one and the label set; None if not prepared."""
    folder = prepared_folder(data, root)
    if not (folder / MANIFEST).exists():
        return None
    manifest = read_manifest(folder)
    sizes = [*manifest["token_types"].values(), len(manifest.get("labels", ()))]
    return sizes[0], sizes[1]


# ------------------------------------------------------------------------------------------------- Arrow files

Ints = npt.NDArray[np.int64]
ROWS = 1 << 18  # of a record batch
PARALLEL, LABELLED = ("source", "target"), ("first", "second")  # columns of token ids
Tokens = npt.NDArray[np.int32]

_NONE: Tokens = np.empty(0, np.int32)


class Ragged:
    """N sequences of token ids, held flat: of chunks of consecutive rows, values and offsets."""

    def __init__(self, chunks: Sequence[tuple[Tokens, npt.NDArray[np.integer[Any]]]]) -> None:
        self._values = [values for values, _ in chunks]
        sizes = [np.diff(offsets.astype(np.int64)) for _, offsets in chunks]
        if any((each < 0).any() or each.sum() > len(values) for each, (values, _) in zip(sizes, chunks, strict=True)):
            raise ValueError("its lists do not lie within its values")
        self.lengths: Ints = np.concatenate([np.empty(0, np.int64), *sizes])
        self.offsets: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        self._bounds: Ints = np.cumsum([0, *(len(values) for values in self._values)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Tokens:
        return self.gather(np.array([row]))

    @cached_property
    def values(self) -> Tokens:
        """All tokens in one array; mapped when the file has one chunk (up to 262,144 rows), otherwise a copy."""
        return self._values[0] if len(self._values) == 1 else np.concatenate([_NONE, *self._values])

    def gather(self, rows: npt.NDArray[np.integer[Any]]) -> Tokens:
        lengths = self.lengths[rows]
        total = int(lengths.sum())
        before = np.cumsum(lengths) - lengths  # tokens of the rows in front
        places = np.repeat(self.offsets[:-1][rows] - before, lengths) + np.arange(total)
        if len(self._values) == 1:
            return self._values[0][places]
        tokens = np.empty(total, np.int32)
        owner = np.searchsorted(self._bounds, places, side="right") - 1
        for chunk in np.unique(owner):
            here = owner == chunk
            tokens[here] = self._values[chunk][places[here] - self._bounds[chunk]]
        return tokens


@contextmanager
def reading_arrow(path: Path) -> Iterator[None]:
    """Turn what comes of an Arrow file that is missing, damaged or without the right columns into a DataError."""
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"cannot read {path}: {error}; prepare the data again with --force") from error


def write_split(
    path: Path,
    chunks: Iterable[Sequence[Sequence[Any]]],
    columns: Sequence[str] = PARALLEL,
    numbers: Sequence[str] = (),
    *,
    with_text: bool,
) -> None:
    """Write one split's Arrow file in record batches of :data:`ROWS` rows, so that memory stays bounded.

    A row is each text's ids (in the `columns`), the label and the extras (the `numbers`), and, `with_text`, the texts;
    what stands behind the last column is left.
    """
    import datasets
    import pyarrow as pa

    features: dict[str, Any] = {side: datasets.Sequence(datasets.Value("int32")) for side in columns}
    features |= {name: datasets.Value("int32") for name in numbers}
    features |= {f"{side}_text": datasets.Value("string") for side in columns if with_text}
    schema = datasets.Features(features).arrow_schema

    def batches() -> Iterator[Any]:
        waiting: list[Any] = []
        for rows in chunks:
            arrays = [pa.array([row[index] for row in rows], kind) for index, kind in enumerate(schema.types)]
            waiting.append(pa.RecordBatch.from_arrays(arrays, schema=schema))
            if sum(batch.num_rows for batch in waiting) >= ROWS:
                yield pa.Table.from_batches(waiting).combine_chunks()
                waiting = []
        if waiting:
            yield pa.Table.from_batches(waiting).combine_chunks()

    with writing(path), path.open("wb") as handle, pa.ipc.new_stream(handle, schema) as stream:
        for table in batches():
            stream.write_table(table)


class Split:
    """One split of prepared text, mapped from its Arrow file: token ids of each text, labels (N,), extras (N,) each."""

    def __init__(self, path: Path, extras: list[str] | None = None) -> None:
        self.path = path
        import pyarrow as pa

        with reading_arrow(path):
            self._table = pa.ipc.open_stream(pa.memory_map(str(path))).read_all()
            self._table.validate()
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
        """The lines of each side of valid or test, cased. Train keeps none (DataError)."""
        if f"{self._columns[0]}_text" not in self._table.column_names:
            raise DataError(f"{self.path.name} keeps no text, only tokens; text is kept of valid and test")
        with reading_arrow(self.path):
            columns = [self._table.column(f"{name}_text") for name in self._columns]
            for column in columns:
                column.validate(full=True)  # a text that begins outside the file would end the process
            return tuple(column.to_pylist() for column in columns)

    def _lists(self, column: str) -> Ragged:
        parts = ((chunk.values, chunk.offsets) for chunk in self._table.column(column).chunks)
        return Ragged([tuple(each.to_numpy(zero_copy_only=True) for each in both) for both in parts])

    def _numbers(self, column: str) -> Ints:
        numbers: Ints = self._table.column(column).to_numpy().astype(np.int64)
        return numbers


class PreparedData:
    """A prepared corpus; `command` prepares it, for messages. Both tokenizers of labelled text are one object."""

    def __init__(self, folder: Path, command: str = "phmctl prepare-data NAME") -> None:
        self.folder = folder
        self.manifest = read_manifest(folder)
        self.command = command
        self._verify(JOINT_FILE, *SIDE_FILES)
        self.tokenizers = TokenizerPair.load(folder)
        self.labels: list[str] = list(self.manifest.get("labels", ()))  # in the order of their numbers
        self.texts: int = self.manifest.get("texts", 2)
        self._splits: dict[str, Split] = {}

    @classmethod
    def find(cls, data: Section, root: Path) -> "PreparedData":
        """Open the data of a recipe's section; raises DataError if it is damaged, of another task, or not prepared."""
        folder, command = prepared_folder(data, root), prepare_command(data, root)
        if not (folder / MANIFEST).exists():
            others = sorted(path.parent.name for path in folder.parent.glob("*/manifest.json"))
            known = [*(path.name for path in (root / "prepared").glob("[!.]*")), *shipped_names("cards")]
            there = f" (it is in {', '.join(others)}, for other settings or another task)" if others else ""
            there = there or ("" if is_card(data.card) else nearest(data.card, known))
            raise DataError(f"{data.card} is not prepared in {folder}{there}; run: {command}")
        prepared = cls(folder, command)
        if isinstance(data, LabelledSection) != (prepared.manifest.get("task") == TASK):
            kind = "labelled text" if isinstance(data, LabelledSection) else "parallel text"
            raise DataError(f"{folder} holds no {kind}: it was prepared for another task")
        return prepared

    def _verify(self, *names: str) -> None:
        """Raise a DataError if the manifest lists one of these files and it is another now."""
        verify(self.folder, self.manifest["files"], DataError, f"run: {self.command} --force", names)

    @property
    def splits(self) -> list[str]:
        return list(self.manifest["splits"])

    def split(self, name: str) -> Split:
        if name not in self.splits:
            raise DataError(f"no split {name!r}{nearest(name, self.splits)}; there are {', '.join(self.splits)}")
        if name not in self._splits:
            self._verify(f"{name}.arrow")
            self._splits[name] = Split(self.folder / f"{name}.arrow", self.manifest.get("extras"))
        return self._splits[name]

    @cached_property
    def vectors(self) -> "Tensor | None":
        """The word vectors, (vocabulary, width) float32; None where the data was prepared without."""
        if not self.manifest.get("vectors"):
            return None
        from safetensors.torch import load_file

        self._verify(VECTORS_FILE)
        vectors: Tensor = load_file(self.folder / VECTORS_FILE)["vectors"]
        return vectors

    @property
    def coverage(self) -> str:
        """In words, what of the text has word vectors; empty where the data was prepared without."""
        if not (vectors := self.manifest.get("vectors")):
            return ""
        tokens = ", ".join(f"{share:.1%} of {split}" for split, share in vectors["tokens"].items())
        return (
            f"{vectors['width']}-dimensional vectors of {vectors['file']} for {vectors['covered']:,} of "
            f"{vectors['types']:,} token types; of the tokens {tokens}"
        )


# ------------------------------------------------------------------------------------- what people are shown of it


def prepared_table(manifest: Mapping[str, Any]) -> Table:
    """Return each split's counts, as the manifest has them."""
    splits, labelled = manifest["splits"], "labels" in manifest
    sides = ("text",) if labelled else PARALLEL
    dropped = list(dict.fromkeys(reason for counts in splits.values() for reason in counts["dropped"]))
    noted = sorted({reason for counts in splits.values() for reason in counts["noted"]})
    titles = ["split", "read", *(f"− {reason}" for reason in dropped), "kept"]
    titles += [f"kept, {reason}" for reason in noted]
    titles += ["commonest label"] if labelled else []
    titles += [f"{manifest.get(f'{side}_language', '')} tokens".strip() for side in sides]
    rows = []
    for name, counts in splits.items():
        numbers = [counts["read"], *(counts["dropped"].get(reason, 0) for reason in dropped), counts["kept"]]
        numbers += [counts["noted"].get(reason, 0) for reason in noted]
        row = [name, *(f"{number:,}" for number in numbers)]
        if labelled:
            label = max(counts["labels"], key=counts["labels"].__getitem__)
            row.append(f"{label} {counts['labels'][label] / counts['kept']:.1%}")
        for side in sides:
            tokens, unknown = counts[side]["tokens"], counts[side]["unknown"] / max(counts[side]["tokens"], 1)
            row.append(f"{tokens:,}" + (f" ({unknown:.1%} unknown)" if unknown else ""))
        rows.append(row)
    return Table(f"{manifest['corpus']}: {_title(manifest)}", [title.replace("_", " ") for title in titles], rows)


def _title(manifest: Mapping[str, Any]) -> str:
    kind, sizes = manifest["settings"]["tokenizer"], manifest["token_types"]
    if "labels" in manifest:
        labels = manifest["labels"]
        classes = ", ".join(labels) if len(labels) <= 6 else f"{len(labels)} labels"
        texts = "pairs" if manifest["texts"] == 2 else "texts"
        return f"{texts}; {classes}; {kind} vocabulary of {sizes['text']:,}"
    if manifest["settings"]["joint"]:
        return f"joint {kind} vocabulary of {sizes['source']:,}"
    return f"{kind} vocabularies of {sizes['source']:,} and {sizes['target']:,}"
