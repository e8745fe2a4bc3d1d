"""Summarise runs from files, without torch: settings, state, best score, size, results."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, Literal

from phmctl.console import Table, warn
from phmctl.errors import PhmctlError
from phmctl.recipe.models import NOTHING
from phmctl.recipe.schema import Recipe, flatten, keys_changing, result_changes
from phmctl.runs.results import Result, read_log_lines, read_results
from phmctl.runs.run import LOCK, RECIPE, Run, read_failure, read_recipe, read_tag, select_runs
from phmctl.storage import AVERAGE, is_locked, is_whole, read_state, saved_steps, step_name

State = Literal["running", "finished", "stopped", "failed"]
Changes = dict[str, tuple[object, object]]  # by key, both values

OWN_COLUMNS = {"model.algebra", "model.n", "training.seed"}  # keys with separate columns
_NO_VALUE = "–"
_MAX_HEADER_BYTES = 1 << 24  # a longer header is no header of a checkpoint
_VOCABULARY_TENSORS = re.compile(r"(?:^|\.)(?:\w*embedding|generator)\.")  # sizes depend on the vocabulary


@dataclass(frozen=True)
class Best:
    """The best validation of a run."""

    step: int
    metric: str  # the metric that selects the best checkpoint: bleu, accuracy, loss
    value: float  # in this metric
    metrics: Mapping[str, float]  # all metrics of the validation


@dataclass(frozen=True)
class Parameters:
    """The number of parameters of a model."""

    total: int
    without_embeddings: int  # without embeddings and generator, whose size depends on the vocabulary


@dataclass(frozen=True)
class Summary:
    """The state of a run and the results."""

    run: Run
    tag: str | None  # set by train --tag
    # values in the recipe file and in the run, where options changed them, without algebra, n, seed and speed settings
    changed: Mapping[str, tuple[object, object]]
    state: State  # running (a process holds the lock), finished, stopped (can be resumed), failed
    reason: str | None  # error of a failed training
    step: int  # the newest checkpoint's or log line's
    minutes: float | None  # trained (None: the log does not contain it)
    best: Best | None  # None before the first validation, and if the log lacks the line
    parameters: Parameters | None  # None without a checkpoint

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """The run's results, read on first use."""
        return tuple(read_results(self.run))

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    def as_json(self) -> dict[str, object]:
        recipe = self.recipe
        model, training, parameters = recipe.model, recipe.training, self.parameters
        return {
            "run": str(self.run.folder),
            "name": self.run.name,
            "recipe": recipe.name,
            "task": recipe.task,
            "variant": recipe.variant,
            "algebra": model.algebra,
            "n": model.n,
            "changed": {key: {"recipe": before, "run": after} for key, (before, after) in self.changed.items()},
            "tag": self.tag,
            "seed": training.seed,
            "steps": training.steps,
            "step": self.step,
            "state": self.state,
            "reason": self.reason,
            "best": None if self.best is None else asdict(self.best),
            "parameters": None if parameters is None else parameters.total,
            "without_embeddings": None if parameters is None else parameters.without_embeddings,
            "minutes": self.minutes,
            "results": [result.as_json() for result in self.results],
        }


def list_runs(names: Sequence[str | Path] = (), root: str | Path | None = None) -> list[Summary]:
    """Summarise the named runs, or all below `root` (:func:`phmctl.runs.run.select_runs`). Warn about damaged runs."""
    summaries: list[Summary] = []
    for folder in select_runs(names, root):
        try:
            summaries.append(summarise(folder))
        except (PhmctlError, OSError, ValueError) as error:
            first_line = str(error).split("\n")[0]
            warn(f"skipped: {first_line}")
    return summaries


def newest_of(recipe: Recipe, root: Path) -> Summary | None:
    """Return the newest run with the results of a recipe, from which it differs only in keys that change no result."""
    for run in Run.trained_with(root, recipe, result_changes):
        return summarise(run.folder)
    return None


def summarise(folder: Path) -> Summary:
    """Return the summary of a run. Raises RunError."""
    run = Run(folder, read_recipe(folder / RECIPE))
    environment = run.environment()
    unmodified = environment.get("unmodified") or {}  # values of the recipe file
    values = dict(flatten(run.recipe.model_dump()))
    ignored = {"name", *OWN_COLUMNS, *keys_changing(run.recipe, NOTHING)}
    changes = {key: (before, values.get(key)) for key, before in unmodified.items() if key not in ignored}
    entries = [entry for _, entry in read_log_lines(run.metrics_path, b'"validation"')]
    seconds = [entry["seconds"] for entry in entries if "seconds" in entry]
    newest, checkpoint_state = _newest_checkpoint(run.checkpoints_folder)
    state, reason = _state(run, checkpoint_state)
    return Summary(
        run=run,
        tag=read_tag(folder),
        changed={key: (before, after) for key, (before, after) in changes.items() if before != after},
        state=state,
        reason=reason,
        step=max([checkpoint_state.get("step", 0), *(entry["step"] for entry in entries)]),
        minutes=seconds[-1] / 60 if seconds else None,
        best=_best(entries, checkpoint_state),
        parameters=None if newest is None else count_stored(newest),
    )


def _newest_checkpoint(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """Return the checkpoint of the last step, which may be the average of removed ones, and the state."""
    newest, state = None, dict[str, Any]()
    steps = reversed(saved_steps(folder))
    step = next((step for step in steps if is_whole(folder / step_name(step))), None)
    if step is not None:
        newest = folder / step_name(step)
        state = read_state(newest)
    if is_whole(folder / AVERAGE):
        averaged = read_state(folder / AVERAGE)
        if averaged.get("step", 0) > state.get("step", 0):
            return folder / AVERAGE, averaged
    return newest, state


def is_done(step: int, stale: int, steps: int, patience: int) -> bool:
    """Return whether a training is over: all steps done, or `patience` validations in a row without improvement."""
    return step >= steps or 0 < patience <= stale


def _state(run: Run, checkpoint_state: Mapping[str, Any]) -> tuple[State, str | None]:
    """Return the state of a run and, if the last training failed, the error."""
    if is_locked(run.folder / LOCK):
        return "running", None
    error = read_failure(run.folder)
    if error is not None:
        return "failed", error
    training = run.recipe.training
    step, stale = checkpoint_state.get("step", 0), checkpoint_state.get("stale", 0)
    validated = checkpoint_state.get("validated", step) == step  # a signal in the last step skips the validation
    trained = bool(checkpoint_state) and validated and is_done(step, stale, training.steps, training.patience)
    averaged = not training.average or (run.checkpoints_folder / AVERAGE).is_dir()
    return ("finished" if trained and averaged else "stopped"), None


def _best(entries: Sequence[Mapping[str, Any]], checkpoint_state: Mapping[str, Any]) -> Best | None:
    """Return the validation that a checkpoint names as the best, or None if the log lacks it.

    Its metric is the one with the score.
    """
    step, score = checkpoint_state.get("best_step"), checkpoint_state.get("best_score")
    if step is None or score is None:
        return None
    validations = [entry for entry in entries if entry["event"] == "validation" and entry["step"] == step]
    validation = validations[-1] if validations else {}
    metrics = {key: value for key, value in validation.items() if type(value) in (int, float)}
    metrics = {key: value for key, value in metrics.items() if key not in ("step", "seconds")}
    metric = next((name for name, value in metrics.items() if value in (score, -score)), None)
    return None if metric is None else Best(step, metric, metrics[metric], metrics)


def count_stored(checkpoint: Path) -> Parameters | None:
    """Count the parameters of a checkpoint from the header of the file, or return None if it cannot be read."""
    try:
        with (checkpoint / "model.safetensors").open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _MAX_HEADER_BYTES)))
        sizes = {name: prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, AttributeError, KeyError, TypeError):
        return None
    without_embeddings = sum(size for name, size in sizes.items() if not _VOCABULARY_TENSORS.search(name))
    return Parameters(sum(sizes.values()), without_embeddings)


def run_tables(summaries: Sequence[Summary]) -> Iterator[Table]:
    """Yield a table for each recipe, without the columns that are empty in all rows."""
    by_recipe = sorted(summaries, key=lambda summary: summary.recipe.name)
    for recipe, grouped in groupby(by_recipe, key=lambda summary: summary.recipe.name):
        group = list(grouped)
        metrics = {summary.best.metric for summary in group if summary.best is not None}
        best = metrics.pop() if len(metrics) == 1 else "best"
        rows = []
        for summary in group:
            changes = []  # as in --set, without model. and training.
            for key, (_, value) in summary.changed.items():
                if key != "training.steps":  # there is a column for them
                    text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
                    changes.append(f"{key.removeprefix('model.').removeprefix('training.')}={text}")
            row = {
                "run": summary.run.name.partition("/")[2],
                "changed": " ".join(changes),
                "tag": summary.tag or "",
                "seed": str(summary.recipe.training.seed),
                "steps": f"{summary.step}/{summary.recipe.training.steps}",
                "state": summary.state,
                best: format_best(summary, best),
                "params": _NO_VALUE if summary.parameters is None else f"{summary.parameters.total / 1e6:.2f}M",
                "min": _NO_VALUE if summary.minutes is None else f"{summary.minutes:.1f}",
            }
            rows.append(row)
        shown = [name for name in rows[0] if any(row[name] for row in rows)]
        text_columns = [index for index, name in enumerate(shown) if name in ("changed", "tag", "state")]
        yield Table(f"\n{recipe}", shown, [[row[name] for name in shown] for row in rows], text_columns)


def format_best(summary: Summary, metric: str = "") -> str:
    """Return the best score of a run, with the name of the metric unless that is `metric`."""
    if summary.best is None:
        return _NO_VALUE
    score = f"{summary.best.value:.4g}"
    return score if metric == summary.best.metric else f"{summary.best.metric} {score}"
