"""Which micro-batches a step trains on, which process computes which of them, and the random numbers of each.

Everything follows from the epoch, the position in it, the rank and the number of processes, so no process asks another,
and no checkpoint holds a generator's state.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import torch

from phmctl.data.order import mixed
from phmctl.devices import seed_generators
from phmctl.errors import DataError

if TYPE_CHECKING:
    from phmctl.tasks.base import Rows, Task

_DROPOUT = 0x64726F70  # keeps these numbers apart from those of the order of batches, which have the seed in common


class BatchStream:
    """Gives the rows of micro-batches from an (epoch, position) on; these attributes name the next one."""

    def __init__(self, task: "Task", epoch: int = 0, position: int = 0) -> None:
        self._task = task
        self.epoch = epoch
        self.position = position
        self._plan = task.plan(epoch)

    def next(self, count: int) -> list["Rows"]:
        """Return the rows of the next `count` micro-batches; they may span two epochs. DataError: an epoch has none."""
        rows = []
        for _ in range(count):
            if self.position >= len(self._plan):
                self.epoch, self.position = self.epoch + 1, 0
                self._plan = self._task.plan(self.epoch)
            if not self._plan:
                raise DataError("the training split holds no sentence; prepare the data again")
            rows.append(self._plan[self.position])
            self.position += 1
        return rows


@dataclass(frozen=True)
class Part:
    """What a process runs forward and backward in one go."""

    micro_batch: int  # of the step, counted from 0
    piece: int  # of the micro-batch, counted from 0
    rows: "Rows"  # of the split
    counts: bool = True  # if not, the process has nothing to do and only takes part in the exchange of gradients


def pieces_of(micro_batches: int, processes: int) -> int:
    """Return in how many pieces each micro-batch of a step is cut, so that all processes get as many of them.

    One where there are enough micro-batches: 4 on 3 processes are 2, 1 and 1; cutting would change dropout.
    """
    return 1 if micro_batches >= processes else processes // gcd(micro_batches, processes)


def parts_of(plan: Sequence["Rows"], rank: int, processes: int) -> list[Part]:
    """Return the parts of a step, given as the rows of its micro-batches, of the process r of W: the r-th, r + W-th, …

    Rows of a micro-batch are sorted by length, so a piece is every so many-th of them: all cost the same.
    """
    pieces = pieces_of(len(plan), processes)
    every = [Part(number, piece, rows[piece::pieces]) for number, rows in enumerate(plan) for piece in range(pieces)]
    return [part for part in every[rank::processes] if len(part.rows)] or [Part(0, 0, plan[0][:1], counts=False)]


def seed_dropout(device: torch.device, seed: int, step: int, part: Part) -> None:
    """Seed the generators for the forward pass of one part by (seed, step, micro-batch, piece). Waits for no device.

    A resumed step, a step that is run again and the same step on another number of processes all draw the same.
    """
    seed_generators(device, mixed(_DROPOUT, seed, step, part.micro_batch, part.piece))
