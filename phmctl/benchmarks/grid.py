"""``bench grid``: the three executions over many shapes, which one ``auto`` takes, and the constants it goes by."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from phmctl.algebra.cost import DENSE, FACTORED, RANK, Constants, work_of
from phmctl.algebra.execution import choose
from phmctl.algebra.initialisation import natural_rank
from phmctl.algebra.products import check_library, library, preferred_library
from phmctl.benchmarks.layer import LayerRow, bench_layer
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


def fit(cells: Iterable[Cell]) -> dict[tuple[bool, str], Constants]:
    """Return the constants of :mod:`phmctl.algebra.cost` that measured seconds ask for, by relative least squares."""
    cells = list(cells)
    fitted = {}
    for trains, name in itertools.product((True, False), NAMES):
        own = [cell for cell in cells if (cell.mode != "eval") == trains]
        if own:
            fitted[trains, name] = _fit([(_work(cell, name, trains), 1e9 * cell.seconds[name]) for cell in own])
    return fitted


def _work(cell: Cell, name: str, trains: bool) -> Sequence[float]:
    shape = cell.tokens, cell.in_features, cell.out_features, cell.n, cell.rank
    return work_of(name, *shape, trains=trains, library=cell.library)


def _fit(samples: Sequence[tuple[Sequence[float], float]]) -> Constants:
    """Solve for constants of at least zero: the most negative one is set to zero until there is none."""
    rows = torch.tensor([work for work, _ in samples], dtype=torch.float64)
    rows /= torch.tensor([[seconds] for _, seconds in samples], dtype=torch.float64)  # relative errors
    used = [index for index in range(rows.shape[1]) if bool(rows[:, index].any())]
    solve: Callable[[list[int]], torch.Tensor] = lambda columns: torch.linalg.lstsq(  # noqa: E731
        rows[:, columns], torch.ones(len(rows), 1, dtype=torch.float64)
    ).solution[:, 0]
    found = solve(used)
    while bool((found < 0).any()):
        used.pop(int(found.argmin()))
        found = solve(used)
    values = dict(zip(used, found.tolist(), strict=True))
    return Constants(*(values.get(index, 0.0) for index in range(rows.shape[1])))
