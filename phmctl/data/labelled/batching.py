"""Batches of labelled text by count: planned in numpy, similar lengths together, collated without a loop."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phmctl.data.arrow import Ragged
from phmctl.data.clean import clean_line
from phmctl.data.labelled.catalog import LabelledCleaning
from phmctl.data.labelled.cleaning import cut
from phmctl.data.order import RandomNumbers
from phmctl.data.special import EOS, PAD
from phmctl.data.tokenizer import Tokenizer

Ints = npt.NDArray[np.int64]

_POOL = 64  # batches' worth of shuffled rows that are sorted by length together


class LabelledRows(Protocol):
    """What :func:`collate` reads of a split."""

    @property
    def first(self) -> Ragged: ...

    @property
    def second(self) -> Ragged | None: ...

    @property
    def labels(self) -> Ints: ...


@dataclass(frozen=True)
class LabelledBatch:
    """One batch of labelled texts, padded.

    Attributes:
        first: (B, S1) int64: tokens, then PAD. A text without tokens is one EOS, so that every row has something.
        second: (B, S2) int64 likewise; None where an example is one text.
        labels: (B,) int64.
        indices: (B,) int64, the rows' numbers in the split.
    """

    first: Tensor
    second: Tensor | None
    labels: Tensor
    indices: Tensor

    @property
    def texts(self) -> tuple[Tensor, ...]:
        """What a model reads: the tokens of each text."""
        return (self.first,) if self.second is None else (self.first, self.second)

    @property
    def target_tokens(self) -> int:
        """What the loss is divided by: the number of examples."""
        return len(self.indices)

    def to(self, device: torch.device | str) -> "LabelledBatch":
        """Return the batch on a device; on a GPU through pinned memory, without waiting for the copy."""
        place = torch.device(device)
        if place.type == "cpu":
            return self
        second = None if self.second is None else _moved(self.second, place)
        return LabelledBatch(_moved(self.first, place), second, _moved(self.labels, place), self.indices)


def _moved(tensor: Tensor, place: torch.device) -> Tensor:
    pin = place.type == "cuda" and not tensor.is_cuda
    return (tensor.pin_memory() if pin else tensor).to(place, non_blocking=True)


def lengths_of(split: LabelledRows) -> tuple[Ints, ...]:
    """Return the tokens of each text of each row, one (N,) array a text, as they are padded: 1 at least."""
    sides = (split.first,) if split.second is None else (split.first, split.second)
    return tuple(np.maximum(side.lengths, 1) for side in sides)


def plan(lengths: Sequence[Ints], batch_size: int, *, seed: int, epoch: int, shuffle: bool = True) -> list[Ints]:
    """Divide the rows of a split into batches of `batch_size`, the last one smaller. Equal arguments give equal plans.

    Args:
        lengths: the tokens of each row, an (N,) array a text (:func:`lengths_of`).
        batch_size: rows of a batch.
        seed: the run's seed.
        epoch: with the seed it decides which rows meet and in which order batches come.
        shuffle: without it, batches come shortest first and do not depend on seed and epoch.

    Returns:
        row numbers, one int64 array a batch; every row stands in exactly one.
    """
    total = np.sum(np.stack([np.asarray(side, np.int64) for side in lengths]), axis=0)  # (N,)
    if not shuffle:
        return _cut(np.argsort(total, kind="stable"), batch_size)
    numbers = RandomNumbers(seed, epoch)
    rows = numbers.permutation(len(total))
    pools = (rows[start : start + _POOL * batch_size] for start in range(0, len(rows), _POOL * batch_size))
    batches = [batch for pool in pools for batch in _cut(pool[np.argsort(total[pool], kind="stable")], batch_size)]
    return numbers.shuffled(batches)


def real_token_share(batches: Sequence[Ints], lengths: Sequence[Ints]) -> float:
    """Return the share of a plan's positions that hold a token."""
    real = sum(int(side.sum()) for side in lengths)
    positions = sum(len(rows) * int(side[rows].max()) for side in lengths for rows in batches)
    return real / positions if positions else 1.0


def collate(split: LabelledRows, rows: Sequence[int] | npt.NDArray[Any]) -> LabelledBatch:
    """Return the padded batch of some rows of a split, in the order given."""
    indices = np.asarray(rows, np.int64)
    first = _padded(split.first, indices)  # (B, S1)
    second = None if split.second is None else _padded(split.second, indices)  # (B, S2)
    return LabelledBatch(first, second, torch.from_numpy(split.labels[indices]), torch.from_numpy(indices))


def _padded(side: Ragged, rows: Ints) -> Tensor:
    """Return (B, longest, at least 1): the tokens, or EOS where there are none, then PAD."""
    lengths = side.lengths[rows]
    width = max(int(lengths.max(initial=0)), 1)
    matrix = np.full((len(rows), width), PAD, np.int64)
    matrix[np.arange(width) < lengths[:, None]] = side.gather(rows)
    matrix[lengths == 0, 0] = EOS
    return torch.from_numpy(matrix)


def _cut(order: Ints, batch_size: int) -> list[Ints]:
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


@dataclass(frozen=True)
class EncodedTexts:
    """Texts without labels, ready for :func:`collate`; the labels are all 0."""

    first: Ragged
    second: Ragged | None
    labels: Ints


def encode_texts(
    texts: Sequence[Sequence[str]], tokenizer: Tokenizer, cleaning: LabelledCleaning, max_tokens: int
) -> EncodedTexts:
    """Clean and tokenize new texts as the splits of prepared data are: N in, N out.

    Args:
        texts: (N, 1) or (N, 2): the texts of each example.
        tokenizer: the run's.
        cleaning: the card's settings (the manifest's ``settings["cleaning"]``).
        max_tokens: of a text; of a longer one the start or the end stays, as the card says.
    """
    sides = []
    for column in zip(*texts, strict=True):
        encoded = tokenizer.encode([clean_line(text, cleaning) for text in column])
        sides.append(_ragged([cut(tokens, max_tokens, cleaning) for tokens in encoded]))
    first = sides[0] if sides else _ragged([])
    return EncodedTexts(first, sides[1] if len(sides) > 1 else None, np.zeros(len(texts), np.int64))


def _ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    values = np.array([token for row in rows for token in row], np.int32)
    return Ragged([(values, np.cumsum([0, *map(len, rows)], dtype=np.int64))])
