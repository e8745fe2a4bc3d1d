"""Plan and collate batches of rows with similar lengths.

Batches of parallel text have at most a number of tokens, padding included: the number of rows times the longest side of
a row, with the end of sentence. Batches of labelled text have a number of rows.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional as F

from phmctl.data import BOS, EOS, PAD
from phmctl.data.card import Cleaning
from phmctl.data.prepared import Ints, Ragged, Split
from phmctl.data.rows import clean_line, truncate
from phmctl.data.tokenizer import Tokenizer
from phmctl.errors import DataError

T = TypeVar("T")


class RandomNumbers:
    """A stream of random numbers for each seed, epoch and `place` in the epoch (at most three numbers).

    NumPy keeps the raw words of its bit generators across versions, but not the streams of ``Generator``.
    """

    def __init__(self, seed: int, epoch: int, *place: int) -> None:
        counter = np.zeros(4, np.uint64)
        counter[1 : 1 + len(place)] = place  # the first word is the counter of drawn numbers
        self._philox = np.random.Philox(key=np.array([seed, epoch], np.uint64), counter=counter)

    def words(self, count: int) -> npt.NDArray[np.uint64]:
        """Draw numbers below 2⁶⁴. (count,)."""
        drawn: npt.NDArray[np.uint64] = self._philox.random_raw(count)
        return drawn

    def permutation(self, count: int) -> npt.NDArray[np.int64]:
        """Draw a permutation of ``0 … count − 1``. (count,)."""
        return np.argsort(self.words(count), kind="stable")

    def chosen(self, count: int, share: float) -> npt.NDArray[np.bool_]:
        """Choose each of `count` with probability `share`. (count,)."""
        return self.words(count) < np.uint64(int(share * 2.0**64))

    def shuffled(self, items: Sequence[T]) -> list[T]:
        return [items[place] for place in self.permutation(len(items))]


# Share of rows that are sorted as if one token longer. On Multi30k (4096 tokens), the rows of a batch that are together
# again in the next epoch fall from 51 % to 30 %, for 1 % more padding.
_LENGTHENED = 0.15
_GPU_MULTIPLE = 8  # lengths are padded to multiples: kernels for few shapes, and aligned rows
_DROPOUT = 1  # separates dropout's random numbers from the batch order's, which use the same seed
_POOL = 64  # batches of shuffled rows that are sorted by length together, in labelled text


class EncodedTexts(NamedTuple):
    """Texts without labels, ready for :func:`collate`. The labels are all 0."""

    sides: tuple[Ragged, ...]
    labels: Ints


TokenRows = Split | EncodedTexts


@dataclass(frozen=True)
class Batch:
    """One batch, padded.

    Of parallel text the source is tokens, EOS, then PAD, and the target (B, T+1) BOS, tokens, EOS, then PAD: input of
    the decoder ``[:, :-1]``, labels ``[:, 1:]``. A labelled text is tokens, then PAD. An empty one is a single EOS, so
    that every row has a token.
    """

    sides: tuple[Tensor, ...]  # (B, S) int64 each
    # Divisor of the loss: target tokens that are not PAD (EOS counts), or the number of labels. An integer, because
    # reading a tensor would wait for the device.
    target_tokens: int
    labels: Tensor = field(default_factory=partial(torch.empty, 0, dtype=torch.int64))  # (B,), none for parallel text

    @property
    def source(self) -> Tensor:
        return self.sides[0]

    @property
    def target(self) -> Tensor:
        return self.sides[1]

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on a device, on a GPU padded, through pinned memory, without waiting for the copy."""
        place = torch.device(device)
        if place.type == "cpu":
            return self
        sides = tuple(_moved(side, place) for side in self.padded(_GPU_MULTIPLE).sides)
        return replace(self, sides=sides, labels=_moved(self.labels, place))

    def padded(self, multiple: int) -> "Batch":
        """Return the batch with lengths S and T that are multiples of a number."""
        sides = list(self.sides)
        for index, side in enumerate(sides):
            begin = index if len(self.labels) == 0 else 0  # the BOS of a target
            sides[index] = F.pad(side, (0, (begin - side.shape[1]) % multiple), value=PAD)
        return replace(self, sides=tuple(sides))


def _moved(tensor: Tensor, place: torch.device) -> Tensor:
    pin = place.type == "cuda" and not tensor.is_cuda
    source = tensor.pin_memory() if pin else tensor
    return source.to(place, non_blocking=True)


def lengths_of(split: TokenRows) -> tuple[Ints, ...]:
    """Return the length of each row on each side, (N,), as :func:`collate` pads it: with EOS, at least 1."""
    if split.labels is None:
        return tuple(side.lengths + 1 for side in split.sides)
    return tuple(np.maximum(side.lengths, 1) for side in split.sides)


def plan_by_tokens(
    lengths: Sequence[npt.ArrayLike], batch_tokens: int, *, seed: int, epoch: int, shuffle: bool = True
) -> list[Ints]:
    """Divide the rows of a split into batches of similar lengths: row numbers, each in exactly one batch.

    The number of rows times the longest row of a batch is at most `batch_tokens`. Seed and epoch determine the rows of
    each batch and the order of batches. Without `shuffle` the shortest come first. Equal arguments give equal plans.
    """
    cost: Ints = np.max([np.asarray(side, np.int64) for side in lengths], axis=0)  # (N,): the longer side of each row
    if cost.max(initial=0) > batch_tokens:
        row = int(cost.argmax())
        raise DataError(
            f"row {row + 1} has {int(cost[row])} tokens, but a batch has at most {batch_tokens}. "
            f"Raise training.batch_tokens or prepare with a smaller max_tokens"
        )
    numbers = RandomNumbers(seed, epoch) if shuffle else None
    order = _by_length(cost, np.asarray(lengths[0], np.int64) - np.asarray(lengths[-1], np.int64), numbers)
    cost = cost[order]
    plan: list[Ints] = []
    start = 0
    while start < len(order):
        window = cost[start : start + batch_tokens // int(cost[start])]
        fits = np.maximum.accumulate(window) * np.arange(1, len(window) + 1) <= batch_tokens
        size = len(window) if fits.all() else int(fits.argmin())
        plan.append(order[start : start + size])
        start += size
    return plan if numbers is None else numbers.shuffled(plan)


def plan_by_count(
    lengths: Sequence[npt.ArrayLike], batch_size: int, *, seed: int, epoch: int, shuffle: bool = True
) -> list[Ints]:
    """Divide the rows of a split into batches of `batch_size`, the last one smaller. See :func:`plan_by_tokens`."""
    total = np.sum(np.stack([np.asarray(side, np.int64) for side in lengths]), axis=0)  # (N,)
    if not shuffle:
        return _cut_by_count(np.argsort(total, kind="stable"), batch_size)
    numbers = RandomNumbers(seed, epoch)
    pools = _cut_by_count(numbers.permutation(len(total)), _POOL * batch_size)
    ordered = (pool[np.argsort(total[pool], kind="stable")] for pool in pools)
    return numbers.shuffled([batch for pool in ordered for batch in _cut_by_count(pool, batch_size)])


def collate(split: TokenRows, rows: Sequence[int] | npt.NDArray[Any]) -> Batch:
    """Return the padded batch of some rows of a split, in the order given."""
    indices = np.asarray(rows, np.int64)
    if split.labels is not None:
        sides = tuple(_padded(side, indices) for side in split.sides)
        return Batch(sides, len(indices), torch.from_numpy(split.labels[indices]))
    source, target = split.sides
    target_tokens = int(target.lengths[indices].sum()) + len(indices)
    sides = _padded(source, indices, end=1), _padded(target, indices, begin=1, end=1)
    return Batch(sides, target_tokens)


def _padded(side: Ragged, rows: Ints, *, begin: int = 0, end: int = 0) -> Tensor:
    """Return (B, begin + longest + end, at least 1): `begin` BOS, the tokens, `end` EOS (1 of an empty row), PAD."""
    lengths = side.lengths[rows]
    width = max(int(lengths.max(initial=0)) + end, 1)
    matrix = np.full((len(rows), begin + width), PAD, np.int64)
    matrix[:, :begin] = BOS
    # The mask selects positions in row-major order, in which the tokens are gathered, too.
    matrix[:, begin:][np.arange(width) < lengths[:, None]] = side.gather(rows)
    ended = np.flatnonzero((lengths == 0) | (end > 0))
    matrix[ended, begin + lengths[ended]] = EOS
    return torch.from_numpy(matrix)


def _by_length(cost: Ints, difference: Ints, numbers: RandomNumbers | None) -> Ints:
    """Return the rows sorted by cost and, for equal cost, by source minus target length, alternately up and down.

    Rows with a longer source are thus separate from rows with a longer target, and the difference changes little where
    a batch contains two costs. Seed and epoch determine the order of rows with equal lengths, the first direction, and
    the rows that count as one token longer.
    """
    rows = np.arange(len(cost))
    added = np.zeros(len(cost), np.int64)
    flip = 0
    if numbers is not None:
        rows = numbers.permutation(len(cost))
        added = numbers.chosen(len(rows), _LENGTHENED).astype(np.int64)
        flip = int(numbers.chosen(1, 0.5)[0])
    major = cost[rows] + added
    minor = difference[rows]
    alternating = np.where((major + flip) % 2 == 0, minor, -minor)
    return rows[np.lexsort((alternating, major))]


def _cut_by_count(order: Ints, batch_size: int) -> list[Ints]:
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def encode_texts(
    texts: Sequence[Sequence[str]], tokenizer: Tokenizer, cleaning: Cleaning, max_tokens: int
) -> EncodedTexts:
    """Clean and tokenize N new rows of one or two texts in the same way as prepared labelled data.

    A text with more than `max_tokens` tokens is truncated at the start or the end, as the cleaning says.
    """
    encoded = (tokenizer.encode([clean_line(text, cleaning) for text in column]) for column in zip(*texts, strict=True))
    sides = tuple(_ragged([truncate(tokens, max_tokens, cleaning) for tokens in side]) for side in encoded)
    return EncodedTexts(sides or (_ragged([]),), np.zeros(len(texts), np.int64))


def _ragged(rows: Sequence[Sequence[int]]) -> Ragged:
    values = np.array([token for row in rows for token in row], np.int32)
    return Ragged([(values, np.cumsum([0, *map(len, rows)], dtype=np.int64))])


# ------------------------------------------------------------------------------------------- the batches of a step


class BatchStream:
    """Yields the rows of micro-batches, beginning at an epoch and position. The attributes name the next batch."""

    def __init__(self, plan: Callable[[int], Sequence[Ints]], epoch: int = 0, position: int = 0) -> None:
        self._plan_of = plan  # returns the rows of each micro-batch of an epoch
        self.epoch = epoch
        self.position = position
        self._plan = plan(epoch)

    def next(self, count: int) -> list[Ints]:
        """Return the rows of the next `count` micro-batches, which may belong to two epochs."""
        rows = []
        for _ in range(count):
            if self.position >= len(self._plan):
                self.epoch, self.position = self.epoch + 1, 0
                self._plan = self._plan_of(self.epoch)
            rows.append(self._plan[self.position])
            self.position += 1
        return rows


@dataclass(frozen=True)
class Part:
    """The rows of one forward and backward pass of a process."""

    micro_batch: int  # number in the step, from 0
    piece: int  # number in the micro-batch, from 0
    rows: Ints  # rows of the training split
    counts: bool = True  # False for a process without rows, which only takes part in the exchange of gradients


def parts_of(plan: Sequence[Ints], rank: int, processes: int) -> list[Part]:
    """Return the parts of a step that process `rank` computes, from the rows of the step's micro-batches.

    Process r of W gets parts r, r + W, … A part is a micro-batch. Only if there are fewer micro-batches than processes,
    each is divided into k pieces, so that all processes get equally many parts. (Dividing changes dropout.) The rows of
    a micro-batch are sorted by length: a piece takes every k-th row, so that all pieces cost the same.
    """
    pieces = 1 if len(plan) >= processes else processes // math.gcd(len(plan), processes)
    parts = []
    for micro_batch, rows in enumerate(plan):
        parts += [Part(micro_batch, piece, rows[piece::pieces]) for piece in range(pieces)]
    process_parts = [part for part in parts[rank::processes] if len(part.rows)]
    return process_parts or [Part(0, 0, plan[0][:1], counts=False)]


def seed_dropout(device: torch.device, seed: int, step: int, part: Part) -> None:
    """Seed torch's generators for the forward pass of a part by seed, step, micro-batch and piece, without waiting.

    A resumed step and a repeated step draw the same numbers, and so does the same step on another number of processes
    unless micro-batches are divided.
    """
    numbers = RandomNumbers(seed, step, part.micro_batch, part.piece, _DROPOUT)
    part_seed = int(numbers.words(1)[0])
    torch.default_generator.manual_seed(part_seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(part_seed)
