"""The PHM layer against ``nn.Linear`` where it is to be faster, beside what is asked of it, as a table in markdown.

::

    python tools/layer_targets.py --threads 2 --output targets.json
"""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from phmctl.algebra.execution import AUTO
from phmctl.backends.machine import processor
from phmctl.benchmarks.layer import bench_layer
from phmctl.benchmarks.timing import Spread
from phmctl.devices import set_threads
from phmctl.files import write_json
from phmctl.nn.linear import FACTORS

FORWARD, BOTH, KEPT = "forward", "forward+backward", "eval"


@dataclass(frozen=True)
class Target:
    """What is asked of one cell: a ratio of seconds to those of ``nn.Linear``."""

    in_features: int
    out_features: int
    n: int
    tokens: int
    mode: str
    asked: float


def _row(d: int, k: int, n: int, forward: float, many: float, few: float) -> list[Target]:
    """Return the targets of a shape: forward (evaluation, training) at 4096 tokens, with backward; 16 tokens."""
    smallest = 0.7 if d >= 1024 and n >= 8 else 1.0
    return [
        Target(d, k, n, 4096, KEPT, forward),
        Target(d, k, n, 4096, FORWARD, forward),
        Target(d, k, n, 4096, BOTH, many),
        Target(d, k, n, 512, BOTH, few),
        Target(d, k, n, 16, FORWARD, smallest),
        Target(d, k, n, 16, KEPT, smallest),
    ]


TARGETS = [
    *_row(512, 512, 4, 0.75, 0.85, 0.95),
    *_row(512, 2048, 4, 0.50, 0.70, 0.75),
    *_row(512, 2048, 8, 0.60, 0.75, 0.80),
    *_row(1024, 4096, 4, 0.45, 0.60, 0.65),
    *_row(2048, 2048, 4, 0.50, 0.55, 0.55),
    *_row(2048, 2048, 8, 0.50, 0.60, 0.62),
]


@dataclass(frozen=True)
class Outcome:
    """A target and what was measured."""

    target: Target
    ratio: Spread
    dense: Spread  # seconds of nn.Linear
    threads: int
    taken: str  # execution and library
    processor: str
    to_twin: Spread  # to PHMLinear(n=1) by the same library

    @property
    def reached(self) -> bool:
        """Whether the median is within what is asked."""
        return self.ratio.median <= self.target.asked

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers."""
        return asdict(self) | {"reached": self.reached}


def bench_targets(targets: Sequence[Target] = TARGETS, *, execution: str = AUTO, rounds: int = 9) -> list[Outcome]:
    """Measure every target on the CPU: a layer that holds its rule as factors, in turns with ``nn.Linear``.

    Args:
        targets: what to measure.
        execution: of the layer.
        rounds: samples of each.
    """
    outcomes = []
    for target in targets:
        (row,) = bench_layer(
            target.in_features,
            target.out_features,
            target.n,
            [target.tokens],
            rounds=rounds,
            modes=[target.mode],
            executions=[execution],
            parametrization=FACTORS,
        )
        outcomes.append(
            Outcome(target, row.ratio, row.dense, torch.get_num_threads(), row.choice, processor(), row.to_twin)
        )
    return outcomes


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """Return a table: a row a shape and n, a column a number of tokens and mode. Bold is what misses its target."""
    columns = list(dict.fromkeys((one.target.tokens, one.target.mode) for one in outcomes))
    lines = ["| d → k | n | " + " | ".join(f"{mode}, {tokens} tokens" for tokens, mode in columns) + " |"]
    lines.append("|" + "---|" * (2 + len(columns)))
    shapes = dict.fromkeys((one.target.in_features, one.target.out_features, one.target.n) for one in outcomes)
    for d, k, n in shapes:
        own = {
            (one.target.tokens, one.target.mode): one
            for one in outcomes
            if (one.target.in_features, one.target.out_features, one.target.n) == (d, k, n)
        }
        cells = [_cell(own[column]) if column in own else "–" for column in columns]
        lines.append(f"| {d} → {k} | {n} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _cell(outcome: Outcome) -> str:
    spread = outcome.ratio
    found = f"{spread.median:.2f} ({spread.lower:.2f}–{spread.upper:.2f})"
    return f"{found if outcome.reached else f'**{found}**'} ≤ {outcome.target.asked:.2f}"


def main() -> None:
    """Measure, print, and write what is to be written."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--execution", default=AUTO)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    set_threads(options.threads)
    outcomes = bench_targets(execution=options.execution, rounds=options.rounds)
    if options.output:
        write_json(options.output, [outcome.as_json() for outcome in outcomes])
    sys.stdout.write(as_markdown(outcomes))


if __name__ == "__main__":
    main()
