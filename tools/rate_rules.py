"""Compare rules for the learning rates of A and S by the validation loss after the last step.

    python tools/rate_rules.py miniature --n 4 --set training.steps=300 --set training.warmup=75

- shipped: phmctl.nn.tuning, each factor by its scale;
- formula: by fan-in, S √n/2 and A d/(2 n^1.5) times the dense map's rate (Qiu et al. 2024, for Kronecker sums);
- measured: before step 1, so that a step of each factor moves the output as far as a step of the dense weight.
"""

import argparse
import math
import sys
import tempfile
from pathlib import Path
from typing import Any

from torch import nn

import phmctl
from phmctl.benchmarks.rates import bench_rates
from phmctl.nn.linear import PHMLinear
from phmctl.nn.tuning import dense_rate, relative_rates
from phmctl.recipe.loading import common_overrides, resolve
from phmctl.runs.results import read_metrics, series
from phmctl.training import optimiser


def formula(model: nn.Module) -> dict[str, float]:
    rates = relative_rates(model)
    for name, module in model.named_modules():
        if isinstance(module, PHMLinear) and module.n > 1:
            n, d = module.n, module.in_features
            rule_rates = {f"{name}.S": math.sqrt(n) / 2, f"{name}.A": d / (2 * n**1.5)}
            rates |= {key: rate * dense_rate(d) for key, rate in rule_rates.items() if key in rates}
    return rates


def measured(rows: list[dict[str, Any]]) -> dict[str, float]:
    return {f"{row['map']}.{row['factor']}": row["multiple"] / row["change"] for row in rows if row["change"] > 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", help="recipe whose data is prepared")
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--rates", default="4e-3,8e-3,1.6e-2")
    parser.add_argument("--rules", default="shipped,formula,measured")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--data", type=Path, default=Path("data"))
    options = parser.parse_args()
    base = resolve(options.recipe, common_overrides(n=options.n), ["training.schedule=linear", *options.set])
    measured_rates = measured(bench_rates(base, options.data)) if "measured" in options.rules else {}
    rules = {
        "shipped": relative_rates,
        "formula": formula,
        "measured": lambda model: {
            name: measured_rates.get(name, rate) for name, rate in relative_rates(model).items()
        },
    }
    for name in options.rules.split(","):
        optimiser.relative_rates = rules[name]
        losses = []
        for rate in options.rates.split(","):
            with tempfile.TemporaryDirectory() as runs:
                settings = {"training.learning_rate": float(rate), "training.validate_bleu": False}
                run = phmctl.train(base, settings=settings, data=options.data, runs=runs).run
                losses.append(f"{series(read_metrics(run.metrics_path), 'validation', 'loss')[-1][1]:.3f}")
        sys.stdout.write(f"{name}: {', '.join(losses)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
