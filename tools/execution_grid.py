"""The executions by each library over shapes and numbers of tokens: how near the best is what ``auto`` measures?

::

    python tools/execution_grid.py --threads 2 --output grid.json
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phmctl.algebra.execution import DENSE, FACTORED, RANK, choose
from phmctl.algebra.initialisation import natural_rank
from phmctl.backends.choices import KEPT, TRAINED, taken_from
from phmctl.backends.machine import processor
from phmctl.backends.products import PACKED, libraries, preferred_library
from phmctl.benchmarks.layer import LayerRow, bench_layer
from phmctl.console import Table, note
from phmctl.devices import set_threads
from phmctl.files import write_json
from phmctl.nn.linear import FACTORS

SHAPES = ((256, 256), (512, 512), (512, 2048), (2048, 512), (1024, 4096), (2048, 2048))
ORDERS = (2, 4, 8)
TOKENS = (1, 16, 64, 256, 512, 1024)
MODES = ("forward+backward", "eval")
NAMES = (DENSE, FACTORED, RANK)


@dataclass(frozen=True)
class Cell:
    """One shape, n, number of tokens and mode."""

    in_features: int
    out_features: int
    n: int
    rank: int
    tokens: int
    mode: str
    ratios: dict[str, float]  # of each execution by each library to nn.Linear, of the shortest samples
    auto: str  # what it takes

    @property
    def excess(self) -> float:
        """What auto's choice costs beyond the best of all, as a share of the best."""
        return self.ratios[self.auto] / min(self.ratios.values()) - 1

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers."""
        return asdict(self) | {"excess": self.excess}


def measure(
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    orders: Sequence[int] = ORDERS,
    tokens: Sequence[int] = TOKENS,
    modes: Sequence[str] = MODES,
    rounds: int = 7,
) -> list[Cell]:
    """Measure every cell of a grid on the CPU.

    Args:
        shapes: (d, k).
        orders: n.
        tokens: rows of the input.
        modes: of :data:`~phmctl.benchmarks.layer.MODES`.
        rounds: samples of each candidate in each cell.
    """
    cells = []
    for (d, k), n in itertools.product(shapes, orders):
        rank, rows = natural_rank(n), []
        for name in libraries(kept=True):
            packed = name == PACKED  # of kept H alone
            names, places = ((DENSE,), [mode for mode in modes if mode == "eval"]) if packed else (NAMES, modes)
            with preferred_library(name):
                rows += bench_layer(
                    d, k, n, tokens, rounds=rounds, modes=places, executions=names, parametrization=FACTORS
                )
        for count, mode in itertools.product(tokens, modes):
            with taken_from({}):  # in its own time
                auto = choose(count, d, k, n, rank, mode=KEPT if mode == "eval" else TRAINED)
            cells.append(Cell(d, k, n, rank, count, mode, _ratios(rows, count, mode), str(auto)))
    return cells


def _ratios(rows: Sequence[LayerRow], tokens: int, mode: str) -> dict[str, float]:
    return {row.choice: row.best_ratio for row in rows if (row.tokens, row.mode) == (tokens, mode)}


def share_within(cells: Sequence[Cell], excess: float = 0.1) -> float:
    """Return the share of the cells where auto's choice costs at most so much beyond the best."""
    return sum(cell.excess <= excess for cell in cells) / len(cells)


def largest(cells: Sequence[Cell], mode: str, fewest: int, most: int) -> float:
    """Return the largest ratio of auto's choice to nn.Linear in a mode, over cells of so many tokens."""
    found = (c.ratios[c.auto] for c in cells if c.mode == mode and fewest <= c.tokens <= most)
    return max(found, default=0.0)


def main() -> None:
    """Measure, print, and write what is to be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    set_threads(options.threads)
    cells = measure(rounds=options.rounds, tokens=options.tokens)
    if options.output:
        found = {"processor": processor(), "within_a_tenth": share_within(cells)}
        write_json(options.output, found | {"cells": [cell.as_json() for cell in cells]})
    names = list(dict.fromkeys(name for cell in cells for name in cell.ratios))
    rows = [
        (
            f"{c.in_features} → {c.out_features}",
            c.n,
            c.tokens,
            c.mode,
            *(f"{c.ratios[name]:.2f}" if name in c.ratios else "" for name in names),
            c.auto,
            f"{c.excess:+.0%}",
        )
        for c in cells
    ]
    title = f"ratios to nn.Linear on {processor()}"
    Table(title, ("d → k", "n", "tokens", "mode", *names, "auto", "over the best"), rows).show()
    note(f"auto is within 10 % of the best of all in {share_within(cells):.1%} of {len(cells)} cells")
    for mode, fewest, most in (("forward+backward", 512, 1 << 20), ("forward+backward", 64, 64), ("eval", 64, 1 << 20)):
        many = f"{fewest} tokens" if fewest == most else f"{fewest} tokens and more"
        note(f"largest ratio of auto to nn.Linear, {mode}, {many}: {largest(cells, mode, fewest, most):.2f}")


if __name__ == "__main__":
    main()
