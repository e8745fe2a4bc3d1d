"""Arrow files of rows with token ids: written in record batches, mapped when read."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from phmctl.errors import DataError
from phmctl.files import writing

ROWS = 1 << 18  # of a record batch
PARALLEL, LABELLED = ("source", "target"), ("first", "second")  # columns of token ids

Ints = npt.NDArray[np.int64]
Tokens = npt.NDArray[np.int32]

_NONE: Tokens = np.empty(0, np.int32)


class Ragged:
    """N sequences of token ids, held flat: of chunks of consecutive rows, values and offsets. Rows are views."""

    def __init__(self, chunks: Sequence[tuple[Tokens, npt.NDArray[np.integer[Any]]]]) -> None:
        self._values = [values for values, _ in chunks]
        sizes = [np.diff(offsets.astype(np.int64)) for _, offsets in chunks]
        self.lengths: Ints = np.concatenate([np.empty(0, np.int64), *sizes])
        self.offsets: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])
        self._bounds: Ints = np.cumsum([0, *(len(values) for values in self._values)], dtype=np.int64)

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, row: int) -> Tokens:
        if not -len(self) <= row < len(self):
            raise IndexError(f"row {row} of {len(self)}")
        row %= len(self)
        start, end = int(self.offsets[row]), int(self.offsets[row + 1])
        chunk = min(int(np.searchsorted(self._bounds, start, side="right")) - 1, len(self._values) - 1)
        base = int(self._bounds[chunk])  # an empty row at the very end is of the last chunk
        return self._values[chunk][start - base : end - base] if chunk >= 0 else _NONE

    @cached_property
    def values(self) -> Tokens:
        """All tokens in one array; mapped when the file has one chunk (up to 262,144 rows), otherwise a copy."""
        return self._values[0] if len(self._values) == 1 else np.concatenate([_NONE, *self._values])

    def gather(self, rows: npt.NDArray[np.integer[Any]]) -> Tokens:
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


def ragged(column: Any) -> Ragged:
    """Return an Arrow column of lists as flat arrays, without a copy. Meant for :func:`reading_columns`."""
    return Ragged(
        [
            (chunk.values.to_numpy(zero_copy_only=True), chunk.offsets.to_numpy(zero_copy_only=True))
            for chunk in column.chunks
        ]
    )


def read_table(path: Path) -> Any:
    """Return the Arrow table of a file, mapped; raises DataError for one that is missing or damaged."""
    import datasets
    import pyarrow as pa

    try:
        table = datasets.Dataset.from_file(str(path)).data
        table.table.validate()
        return table
    except (OSError, pa.ArrowException, ValueError, TypeError, LookupError, AttributeError) as error:
        raise DataError(f"cannot read {path}: {error}; prepare the data again with --force") from error


@contextmanager
def reading_columns(path: Path) -> Iterator[None]:
    """Turn what comes of an Arrow file without the right columns into a :class:`DataError`."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, ValueError, TypeError, LookupError, AttributeError) as error:
        wrong = f"{path} has not the columns it should have ({error})"
        raise DataError(f"{wrong}; prepare the data again with --force") from error


class SplitWriter:
    """Writes one split's Arrow file in record batches of :data:`ROWS` rows, so that memory stays bounded.

    A context: the file is finished and flushed to the disk when the block ends well. A row is each text's ids (in the
    `columns`), the label and the extras (the `numbers`), and, `with_text`, the texts.
    """

    def __init__(
        self, path: Path, columns: Sequence[str] = PARALLEL, numbers: Sequence[str] = (), *, with_text: bool
    ) -> None:
        import datasets
        import pyarrow as pa

        features: dict[str, Any] = {side: datasets.Sequence(datasets.Value("int32")) for side in columns}
        features |= {name: datasets.Value("int32") for name in numbers}
        features |= {f"{side}_text": datasets.Value("string") for side in columns if with_text}
        self._path = path
        self._schema = datasets.Features(features).arrow_schema
        self._waiting: list[Any] = []  # record batches
        self._rows = 0
        with writing(path):
            self._handle = path.open("wb")
            self._stream = pa.ipc.new_stream(self._handle, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if kind is None:
                self._flush()
                with writing(self._path):
                    self._stream.close()
                    self._handle.flush()
                    os.fsync(self._handle.fileno())
        finally:
            with writing(self._path) if kind is None else suppress(OSError):
                self._handle.close()  # what is still buffered may not fit the disk

    def add(self, rows: Sequence[Sequence[Any]]) -> None:
        """Append rows: a value for each column, in their order; what stands behind the last column is left."""
        import pyarrow as pa

        arrays = [pa.array([row[index] for row in rows], kind) for index, kind in enumerate(self._schema.types)]
        self._waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        self._rows += len(rows)
        if self._rows >= ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if self._rows:
            table = pa.Table.from_batches(self._waiting, schema=self._schema).combine_chunks()
            with writing(self._path):
                self._stream.write_table(table)
        self._waiting, self._rows = [], 0
