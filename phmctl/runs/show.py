"""Runs as people see them: a table a recipe, with what tells its runs apart."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from phmctl.console import Table
from phmctl.runs.summary import Damaged, Summary

_NONE = "–"


def run_tables(found: Sequence[Summary | Damaged]) -> Iterator[Table]:
    """A table for each recipe. Columns that are empty in all of its rows are left out."""
    sound = [run for run in found if isinstance(run, Summary)]
    for recipe, group in groupby(sorted(sound, key=lambda run: run.recipe.name), key=lambda run: run.recipe.name):
        runs = list(group)
        metrics = {run.best.metric for run in runs if run.best is not None}
        best = metrics.pop() if len(metrics) == 1 else "best"
        columns: dict[str, list[str]] = {
            "run": [run.run.name.partition("/")[2] for run in runs],
            "changed": [changes(run) for run in runs],
            "tag": [run.tag or "" for run in runs],
            "seed": [str(run.recipe.training.seed) for run in runs],
            "steps": [f"{run.step}/{run.recipe.training.steps}" for run in runs],
            "state": [run.state for run in runs],
            best: [score(run, best) for run in runs],
            "params": [_millions(run) for run in runs],
            "min": [_NONE if run.minutes is None else f"{run.minutes:.1f}" for run in runs],
        }
        shown = {name: cells for name, cells in columns.items() if any(cells)}
        text = [index for index, name in enumerate(shown) if name in ("changed", "tag", "state")]
        yield Table(f"\n{recipe}", list(shown), list(zip(*shown.values(), strict=True)), text, plain=True)


def remarks(found: Sequence[Summary | Damaged]) -> Iterator[str]:
    """A line for each run that failed, and for each folder that cannot be read."""
    for run in found:
        if isinstance(run, Damaged):
            yield f"warning: {run.problem}"
        elif run.reason is not None:
            yield f"{run.run.name} failed: {run.reason}"


def changes(run: Summary) -> str:
    """What differs from the recipe as written, without the number of steps, which has a column of its own.

    The keys are those of ``--set``, without ``model.`` and ``training.``.
    """
    changed = {key: new for key, (_, new) in run.changed.items() if key != "training.steps"}
    return " ".join(f"{key.removeprefix('model.').removeprefix('training.')}={_value(changed[key])}" for key in changed)


def _value(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(value)


def score(run: Summary, metric: str = "") -> str:
    """A run's best figure; with its metric's name, unless that is `metric`."""
    if run.best is None:
        return _NONE
    figure = f"{run.best.value:.4g}"
    return figure if metric == run.best.metric else f"{run.best.metric} {figure}"


def _millions(run: Summary) -> str:
    return _NONE if run.parameters is None else f"{run.parameters.total / 1e6:.2f}M"
