"""Compare rules for the rates of A and S: the loss on valid after the last step.

    python tools/rate_rules.py miniature --n 4 --set training.steps=300 --set training.warmup=75

- shipped: phmctl.nn.tuning's, each factor by its scale;
- formula: by fan-in, S √n/2 and A d/(2 n^1.5) times the dense map's rate (Qiu et al. 2024, for Kronecker sums);
- measured: before step 1, such that a step of each factor moves the map's output as a step of the dense weight does.
"""

import argparse
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

import phmctl
from phmctl.benchmarks.models import bench_rates
from phmctl.nn.linear import PHMLinear
from phmctl.nn.tuning import dense_rate, relative_rates
from phmctl.recipe.loading import common_overrides, resolve
from phmctl.runs.results import read_metrics, series
from phmctl.training import optimiser


def formula(model: nn.Module) -> dict[str, float]:
    rates = relative_rates(model)
    for name, module in model.named_modules():
        if isinstance(module, PHMLinear) and module.n > 1:
            own, n, d = dense_rate(module.in_features), module.n, module.in_features
            known = {f"{name}.S": own * math.sqrt(n) / 2, f"{name}.A": own * d / (2 * n**1.5)}
            rates |= {key: rate for key, rate in known.items() if key in rates}
    return rates


def measured(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {f"{row['map']}.{row['factor']}": row["multiple"] / row["change"] for row in rows if row["change"] > 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="its data is prepared")
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--rates", default="4e-3,8e-3,1.6e-2")
    parser.add_argument("--rules", default="shipped,formula,measured")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, default=Path("data"))
    given = parser.parse_args()
    base = resolve(given.recipe, common_overrides(n=given.n), ["training.schedule=linear", *given.set])
    by_measure = measured(bench_rates(base, given.data)) if "measured" in given.rules else {}
    rules = {
        "shipped": relative_rates,
        "formula": formula,
        "measured": lambda model: {name: by_measure.get(name, rate) for name, rate in relative_rates(model).items()},
    }
    for name in given.rules.split(","):
        optimiser.relative_rates = rules[name]
        losses = []
        for rate in given.rates.split(","):
            with tempfile.TemporaryDirectory() as runs:
                settings = {"training.learning_rate": float(rate), "training.validate_bleu": False}
                run = phmctl.train(base, settings=settings, data=given.data, runs=runs).run
                losses.append(f"{series(read_metrics(run.metrics_path), 'validation', 'loss')[-1][1]:.3f}")
        sys.stdout.write(f"{name}: {', '.join(losses)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
