"""The three executions over many shapes and numbers of tokens, and in how many cells ``auto`` is near the best.

::

    python tools/execution_grid.py --threads 2 --library mkl --library onednn --output grid.json
"""

import argparse
import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from phmctl.algebra.execution import DENSE, FACTORED, RANK, choose
from phmctl.algebra.initialisation import natural_rank
from phmctl.algebra.products import check_library, library, preferred_library
from phmctl.benchmarks.layer import LayerRow, bench_layer
from phmctl.console import Table, note
from phmctl.devices import set_threads
from phmctl.files import write_json
from phmctl.nn.linear import FACTORS

SHAPES = ((256, 256), (512, 512), (512, 2048), (2048, 512), (1024, 4096), (2048, 2048))
ORDERS = (2, 4, 8)
TOKENS = (1, 16, 64, 256, 1024)
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
    library: str  # that takes the large products
    seconds: dict[str, float]  # execution -> the shortest sample; ``nn.Linear`` among them
    auto: str  # what it takes

    @property
    def excess(self) -> float:
        """What auto's choice costs beyond the best execution, as a share of the best."""
        return self.seconds[self.auto] / min(self.seconds[name] for name in NAMES) - 1

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
    device: str = "cpu",
    libraries: Sequence[str] = (),
) -> list[Cell]:
    """Measure every cell of a grid, the executions of a cell in turns.

    Args:
        shapes: (d, k).
        orders: n.
        tokens: rows of the input.
        modes: of :data:`~phmctl.benchmarks.layer.MODES`.
        rounds: samples of each execution in each cell.
        device: ``cpu`` or ``cuda``.
        libraries: of :data:`~phmctl.algebra.products.LIBRARIES`, each over all cells; none: the one that this processor
            takes.
    """
    cells = []
    names = [check_library(name) for name in libraries] or [library()]  # before anything is measured
    for name, (d, k), n in itertools.product(names, shapes, orders):
        rank = natural_rank(n)
        with preferred_library(name):
            rows = bench_layer(
                d, k, n, tokens, device=device, rounds=rounds, modes=modes, executions=NAMES, parametrization=FACTORS
            )
            cells += _cells(rows, rank, name, device)
    return cells


def _cells(rows: Sequence[LayerRow], rank: int, name: str, device: str) -> list[Cell]:
    """Return the cells of one shape and n."""
    cells = []
    for (tokens, mode), group in itertools.groupby(rows, key=lambda row: (row.tokens, row.mode)):
        found = list(group)
        d, k, n = found[0].in_features, found[0].out_features, found[0].n
        # The shortest samples: where others are at work, the nearest to a quiet machine.
        seconds = {row.execution: row.best_ratio * row.dense_best for row in found}
        auto = choose(tokens, d, k, n, rank, trains=mode != "eval", device=device)
        cells.append(Cell(d, k, n, rank, tokens, mode, name, seconds | {"nn.Linear": found[0].dense_best}, auto))
    return cells


def share_within(cells: Sequence[Cell], excess: float = 0.1) -> float:
    """Return the share of the cells where auto's choice costs at most so much beyond the best."""
    return sum(cell.excess <= excess for cell in cells) / len(cells)


def main() -> None:
    """Measure, print, and write what is to be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--library", action="append", default=[])
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    set_threads(options.threads)
    cells = measure(rounds=options.rounds, tokens=options.tokens, libraries=options.library)
    if options.output:
        document = {"cells": [cell.as_json() for cell in cells], "within_a_tenth": share_within(cells)}
        write_json(options.output, document)
    rows = [
        (
            f"{c.in_features} → {c.out_features}",
            c.n,
            c.tokens,
            c.mode,
            *(f"{c.seconds[name] / c.seconds['nn.Linear']:.2f}" for name in NAMES),
            c.auto,
            f"{c.excess:+.0%}",
        )
        for c in cells
    ]
    Table("ratios to nn.Linear", ("d → k", "n", "tokens", "mode", *NAMES, "auto", "over the best"), rows).show()
    note(f"auto is within 10 % of the best in {share_within(cells):.1%} of {len(cells)} cells")


if __name__ == "__main__":
    main()
