"""Batches by token budget, padding included: planned in numpy for millions of rows, collated without a loop.

A row costs its longer side with the end of sentence. A batch costs its number of rows times its dearest row, which is
what the model computes on; that never exceeds the budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from phmctl.data.arrow import Ragged
from phmctl.data.order import RandomNumbers
from phmctl.data.special import BOS, EOS, PAD
from phmctl.errors import DataError

Ints = npt.NDArray[np.int64]

# The share of rows sorted as if one token dearer. On Multi30k (4096 tokens) it lowers the share of a row's batch mates
# that it meets again next epoch from 0.51 to 0.30, for 1 % more padding.
_DEARER = 0.15


class PairRows(Protocol):
    """What :func:`collate` reads: both sides of a split."""

    @property
    def source(self) -> Ragged: ...

    @property
    def target(self) -> Ragged: ...


@dataclass(frozen=True)
class Batch:
    """One batch of sentence pairs, padded.

    Attributes:
        source: (B, S) int64: tokens, EOS, then PAD.
        target: (B, T+1) int64: BOS, tokens, EOS, then PAD. Input of the decoder ``[:, :-1]``, labels ``[:, 1:]``.
        indices: (B,) int64, the rows' numbers in the split.
        target_tokens: labels that are not PAD (EOS counts); a plain integer, so reading it waits for no device.
    """

    source: Tensor
    target: Tensor
    indices: Tensor
    target_tokens: int

    def to(self, device: torch.device | str) -> "Batch":
        """Return the batch on a device; on a GPU through pinned memory, without waiting for the copy."""
        place = torch.device(device)
        if place.type == "cpu":
            return self
        pin = place.type == "cuda" and not self.source.is_cuda
        tensors = (self.source, self.target)  # the indices are for the host
        source, target = ((tensor.pin_memory() if pin else tensor).to(place, non_blocking=True) for tensor in tensors)
        return Batch(source, target, self.indices, self.target_tokens)


def costs(source_lengths: npt.ArrayLike, target_lengths: npt.ArrayLike) -> Ints:
    """Return each row's cost, (N,) int64: its longer side in tokens, with the end of sentence."""
    return np.maximum(np.asarray(source_lengths, np.int64), np.asarray(target_lengths, np.int64)) + 1


def plan_batches(
    source_lengths: npt.ArrayLike,
    target_lengths: npt.ArrayLike,
    batch_tokens: int,
    *,
    seed: int,
    epoch: int,
    shuffle: bool = True,
) -> list[Ints]:
    """Divide the rows of a split into batches of similar lengths. The same arguments give the same plan.

    Args:
        source_lengths: (N,) tokens, without the end of sentence.
        target_lengths: (N,) likewise.
        batch_tokens: the budget: rows × dearest row of a batch never exceeds it.
        seed: the run's seed.
        epoch: with the seed it decides which rows meet and in which order batches come.
        shuffle: without it, batches come shortest first and do not depend on seed and epoch.

    Returns:
        row numbers, one int64 array a batch; every row stands in exactly one.

    Raises:
        DataError: a row costs more than the budget.
    """
    source = np.asarray(source_lengths, np.int64)
    target = np.asarray(target_lengths, np.int64)
    cost = costs(source, target)
    _refuse_too_long(cost, batch_tokens)
    numbers = RandomNumbers(seed, epoch) if shuffle else None
    order = _by_length(source, target, numbers)
    plan = _cut(order, cost[order], batch_tokens)
    return plan if numbers is None else numbers.shuffled(plan)


def real_token_share(plan: Sequence[Ints], source_lengths: npt.ArrayLike, target_lengths: npt.ArrayLike) -> float:
    """Return the share of a plan's positions, of both sides, that hold a token (end of sentence included)."""
    real = positions = 0
    for lengths in (np.asarray(source_lengths, np.int64) + 1, np.asarray(target_lengths, np.int64) + 1):
        real += int(lengths.sum())
        positions += sum(len(rows) * int(lengths[rows].max()) for rows in plan)
    return real / positions if positions else 1.0


def collate(split: PairRows, rows: Sequence[int] | npt.NDArray[Any]) -> Batch:
    """Return the padded batch of some rows of a split, in the order given."""
    indices = np.asarray(rows, np.int64)
    source = _padded(split.source, indices, begin=0)  # (B, S)
    target = _padded(split.target, indices, begin=1)  # (B, T+1)
    target[:, 0] = BOS
    target_tokens = int(split.target.lengths[indices].sum()) + len(indices)
    return Batch(torch.from_numpy(source), torch.from_numpy(target), torch.from_numpy(indices), target_tokens)


def _padded(side: Ragged, rows: Ints, *, begin: int) -> Ints:
    """Return (B, begin + longest + 1): `begin` free columns, the tokens, EOS, PAD."""
    lengths = side.lengths[rows]
    width = int(lengths.max(initial=0))
    matrix = np.full((len(rows), begin + width + 1), PAD, np.int64)
    # Row-major order of the true places is the order in which the rows' tokens are gathered.
    matrix[:, begin : begin + width][np.arange(width) < lengths[:, None]] = side.gather(rows)
    matrix[np.arange(len(rows)), begin + lengths] = EOS
    return matrix


def _refuse_too_long(cost: Ints, batch_tokens: int) -> None:
    if cost.size and int(cost.max()) > batch_tokens:
        row = int(cost.argmax())
        raise DataError(
            f"row {row + 1} has {int(cost[row])} tokens, more than a batch of {batch_tokens} holds; "
            f"raise training.batch_tokens or prepare with a smaller --max-tokens"
        )


def _by_length(source: Ints, target: Ints, numbers: RandomNumbers | None) -> Ints:
    """Return the rows sorted by cost, and within one by source minus target length, up and down in turns.

    The difference keeps rows with a longer source apart from those with a longer target; the turns keep it close where
    a batch runs over from one cost to the next. An epoch draws which rows of equal lengths meet, which way the turns
    go, and which rows count as one token dearer.
    """
    rows, dearer, flip = np.arange(len(source)), np.zeros(len(source), np.int64), 0
    if numbers is not None:
        rows = numbers.permutation(len(source))
        dearer = numbers.chosen(len(rows), _DEARER).astype(np.int64)
        flip = int(numbers.chosen(1, 0.5)[0])
    major = costs(source, target)[rows] + dearer
    minor = (source - target)[rows]
    turns = np.where((major + flip) % 2 == 0, minor, -minor)
    return rows[np.lexsort((turns, major))]


def _cut(order: Ints, cost: Ints, batch_tokens: int) -> list[Ints]:
    """Cut the sorted rows into the longest runs that keep within the budget."""
    plan = []
    start = 0
    while start < len(order):
        window = cost[start : start + batch_tokens // int(cost[start])]
        dearest = np.maximum.accumulate(window)
        fits = dearest * np.arange(1, len(window) + 1) <= batch_tokens
        size = len(window) if fits.all() else int(fits.argmin())
        plan.append(order[start : start + size])
        start += size
    return plan
