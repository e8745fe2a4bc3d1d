"""How processes divide a step: whole micro-batches where there are enough of them, else pieces of them.

Everything follows from the plan, the rank and the number of processes, so no process asks another.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from phmctl.tasks.base import Rows


@dataclass(frozen=True)
class Part:
    """What a process runs forward and backward in one go.

    Attributes:
        micro_batch: of the step, counted from 0.
        piece: of the micro-batch, counted from 0.
        rows: of the split.
        counts: whether its gradient counts; if not, the process only keeps the others company.
    """

    micro_batch: int
    piece: int
    rows: "Rows"
    counts: bool = True


def pieces_of(micro_batches: int, processes: int) -> int:
    """Return in how many pieces each micro-batch of a step is cut, so that all processes get as many of them.

    One where there are enough micro-batches: 4 on 3 processes are 2, 1 and 1; cutting would change dropout.
    """
    return 1 if micro_batches >= processes else processes // gcd(micro_batches, processes)


def parts_of(plan: Sequence["Rows"], rank: int, processes: int, *, in_step: bool = False) -> list[Part]:
    """Return a process's parts of a step: the r-th, the r + W-th, …

    Rows of a micro-batch are sorted by length, so a piece takes every so many-th of them: all are as dear.

    Args:
        plan: the rows of the step's micro-batches.
        rank: r, the process's number.
        processes: W, how many there are.
        in_step: give each process as many parts; some do not count then. One part is always given.
    """
    pieces = pieces_of(len(plan), processes)
    every = [Part(number, piece, rows[piece::pieces]) for number, rows in enumerate(plan) for piece in range(pieces)]
    mine = [part for part in every[rank::processes] if len(part.rows)]
    wanted = -(-len(every) // processes) if in_step else 1
    company = Part(0, 0, plan[0][:1], counts=False)
    return [company] * (wanted - len(mine)) + mine
