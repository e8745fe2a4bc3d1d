"""Curves and end scores of several runs by variant: ``python tools/learning_curves.py RUNS... --output curves.png``.

RUNS are run directories of one recipe. Their variants (``phm-n4``, ``phm-n4-factors``, …) are set side by side: the
picture has the validation loss over the steps, the mean of a variant's seeds as a line and their range as a band; the
table has the number of seeds, and the mean and the range of the training loss over the last tenth of the steps, of the
lowest validation loss, and of the best validation score.
"""

import argparse
import json
import statistics
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Curve = Sequence[Mapping[str, Any]]  # validations, in order


class Read(NamedTuple):
    """What a run's metrics say."""

    training_loss: float  # mean over the last tenth of the steps
    curve: Curve


def read(folder: Path) -> Read:
    """Read a run's metrics."""
    lines = (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    entries = [json.loads(line) for line in lines]
    trained = [entry for entry in entries if entry["event"] == "train"]
    late = [entry["loss"] for entry in trained if entry["step"] > 0.9 * trained[-1]["step"]]
    return Read(statistics.fmean(late), [entry for entry in entries if entry["event"] == "validation"])


def by_variant(folders: Sequence[Path]) -> dict[str, list[Read]]:
    """Return the curves of each variant: a run lies in a folder of its variant's name."""
    found: dict[str, list[Read]] = defaultdict(list)
    for folder in folders:
        found[folder.parent.name].append(read(folder))
    return dict(sorted(found.items()))


def spread(values: Sequence[float]) -> str:
    """Return the mean and the range."""
    middle = statistics.fmean(values)
    return f"{middle:.4f} ({min(values):.4f}–{max(values):.4f})" if len(values) > 1 else f"{middle:.4f}"


def table(runs: Mapping[str, Sequence[Read]], score: str, best: Callable[[Iterable[float]], float]) -> str:
    """Return a table in markdown, a row a variant."""
    lines = [f"| variant | seeds | training loss | lowest validation loss | best {score} |", "|---|---|---|---|---|"]
    for name, found in runs.items():
        losses = [min(entry["loss"] for entry in run.curve) for run in found]
        scores = [best(entry[score] for entry in run.curve) for run in found]
        cells = [spread(values) for values in ([run.training_loss for run in found], losses, scores)]
        lines.append(f"| {name} | {len(found)} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(path: Path, runs: Mapping[str, Sequence[Read]]) -> None:
    """Draw the validation loss of each variant over the steps."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5, 4.0), dpi=120, layout="constrained")
    axes = figure.add_subplot(xlabel="step", ylabel="validation loss")
    for name, found in runs.items():
        points = [{entry["step"]: entry["loss"] for entry in run.curve} for run in found]
        steps = sorted(set.intersection(*(set(each) for each in points)))  # those that every run has
        losses = [[each[step] for each in points] for step in steps]
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
    runs = by_variant(options.runs)
    known = {key for found in runs.values() for run in found for entry in run.curve for key in entry}
    if options.score not in known:
        parser.error(f"no score {options.score!r} in these runs; there are {', '.join(sorted(known))}")
    sys.stdout.write(table(runs, options.score, min if options.score == "perplexity" else max))
    if options.output:
        draw(options.output, runs)


if __name__ == "__main__":
    main()
