"""Curves and end scores of several runs by variant: ``python tools/learning_curves.py RUNS... --output curves.png``.

RUNS are run directories of one recipe. Their variants (``phm-n4``, ``phm-n4-factors``, …) are set side by side: the
picture has the validation loss over the steps, the mean of a variant's seeds as a line and their range as a band; the
table has the number of seeds, the mean and the range of the end's loss and score, and the steps a second.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Curve = Sequence[Mapping[str, Any]]  # validations, in order


def read(folder: Path) -> Curve:
    """Return the validations of a run, in order."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    return [entry for entry in entries if entry["event"] == "validation"]


def by_variant(folders: Sequence[Path]) -> dict[str, list[Curve]]:
    """Return the curves of each variant: a run lies in a folder of its variant's name."""
    found: dict[str, list[Curve]] = defaultdict(list)
    for folder in folders:
        found[folder.parent.name].append(read(folder))
    return dict(sorted(found.items()))


def spread(values: Sequence[float]) -> str:
    """Return the mean and the range."""
    middle = statistics.fmean(values)
    return f"{middle:.4f} ({min(values):.4f}–{max(values):.4f})" if len(values) > 1 else f"{middle:.4f}"


def table(curves: Mapping[str, Sequence[Curve]], score: str) -> str:
    """Return a table in markdown: the last validation of each variant."""
    lines = [f"| variant | seeds | loss | {score} |", "|---|---|---|---|"]
    for name, found in curves.items():
        last = [curve[-1] for curve in found]
        losses, scores = ([entry[key] for entry in last] for key in ("loss", score))
        lines.append(f"| {name} | {len(found)} | {spread(losses)} | {spread(scores)} |")
    return "\n".join(lines) + "\n"


def draw(path: Path, curves: Mapping[str, Sequence[Curve]]) -> None:
    """Draw the validation loss of each variant over the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.0), dpi=120, layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="validation loss")
    for name, found in curves.items():
        steps = [entry["step"] for entry in found[0]]
        losses = [[curve[index]["loss"] for curve in found] for index in range(len(steps))]
        (line,) = axes.plot(steps, [statistics.fmean(each) for each in losses], label=f"{name} ({len(found)})")
        axes.fill_between(steps, [*map(min, losses)], [*map(max, losses)], color=line.get_color(), alpha=0.15)
    axes.grid(visible=True, alpha=0.3)
    axes.legend()
    figure.savefig(path, metadata={"Software": None})


def main() -> None:
    """Print the table; draw the picture where one is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--score", default="accuracy", help="a key of the validations: accuracy, perplexity")
    parser.add_argument("--output", type=Path, help="the picture (PNG)")
    options = parser.parse_args()
    curves = by_variant(options.runs)
    sys.stdout.write(table(curves, options.score))
    if options.output:
        draw(options.output, curves)


if __name__ == "__main__":
    main()
