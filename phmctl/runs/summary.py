"""Summarise runs from their files, without torch: settings, state, best score, size, results; and compare two runs."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, Literal

from phmctl.console import Table, warn
from phmctl.errors import PhmctlError, RunError
from phmctl.recipe import flatten
from phmctl.recipe.loading import differences
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.recipe.schema import Recipe
from phmctl.runs.find import KILLED, LOCK, RECIPE, read_failure, read_tag, select_runs
from phmctl.runs.results import Result, read_results, read_validations
from phmctl.runs.run import Run, read_recipe
from phmctl.storage import AVERAGE, is_locked, is_whole, read_state, saved_steps, sha256_text, step_name

State = Literal["running", "finished", "stopped", "failed"]
Changes = dict[str, tuple[Any, Any]]  # by key, both values

_OWN_COLUMNS = {"model.algebra", "model.n", "training.seed"}  # keys with separate columns
_NO_VALUE = "–"
_MAX_HEADER_BYTES = 1 << 24  # of a safetensors file
_VOCABULARY_TENSORS = re.compile(r"(?:^|\.)(?:\w*embedding|generator)\.")  # their size depends on the vocabulary


@dataclass(frozen=True)
class Best:
    """The best validation of a run."""

    step: int
    metric: str  # the metric that selects the best checkpoint: bleu, accuracy, loss
    value: float  # of this metric
    metrics: Mapping[str, float]  # all metrics of the validation


@dataclass(frozen=True)
class Parameters:
    """The number of parameters of a model."""

    total: int
    without_embeddings: int  # without embeddings and generator, whose size depends on the vocabulary


@dataclass(frozen=True)
class Summary:
    """The state of a run and its results."""

    run: Run
    tag: str | None  # set by train --tag
    # values in the recipe file and in the run, where options changed them; without algebra, n, seed and speed settings
    changed: Mapping[str, tuple[Any, Any]]
    unmodified_known: bool  # False if the run does not store the recipe file's values; `changed` is empty then
    state: State  # running (a process holds the lock), finished, stopped (can be resumed), failed
    reason: str | None  # error of a failed training
    step: int  # of the newest checkpoint or log line
    minutes: float | None  # of training; None if the log does not contain it
    best: Best | None  # None before the first validation, and if the log lacks its line
    parameters: Parameters | None  # None without a checkpoint

    @cached_property
    def results(self) -> tuple[Result, ...]:
        """The run's results, read on first use."""
        return tuple(read_results(self.run))

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    def as_json(self) -> dict[str, Any]:
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
            "unmodified_known": self.unmodified_known,
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
    """Summarise the named runs, or all below `root` (:func:`phmctl.runs.find.select_runs`); warn about damaged runs."""
    summaries: list[Summary] = []
    for folder in select_runs(names, root):
        try:
            summaries.append(summarise(folder))
        except (PhmctlError, OSError, ValueError, RecursionError) as error:
            first_line = str(error).split("\n")[0]
            warn(f"skipped: {first_line}")
    return summaries


def newest_of(recipe: Recipe, root: Path) -> Summary | None:
    """Return the newest run with the results of a recipe: its recipe differs only in keys that change no result."""
    for run in Run.trained_with(root, recipe, keys_changing(recipe, NOTHING)):
        return summarise(run.folder)
    return None


def summarise(folder: Path) -> Summary:
    """Return the summary of a run. Raises RunError."""
    run = Run(folder, read_recipe(folder / RECIPE))
    environment = run.environment()
    unmodified = environment.get("unmodified")
    entries = read_validations(run.metrics_path)
    seconds = [entry["seconds"] for entry in entries if "seconds" in entry]
    newest, checkpoint_state = _newest_checkpoint(run.checkpoints_folder)
    state, reason = _state(run, checkpoint_state)
    return Summary(
        run=run,
        tag=read_tag(folder),
        changed=_changed(run, unmodified) if isinstance(unmodified, dict) else {},
        unmodified_known=isinstance(unmodified, dict),
        state=state,
        reason=reason,
        step=max([_integer(checkpoint_state.get("step")), *(entry["step"] for entry in entries)]),
        minutes=seconds[-1] / 60 if seconds else None,
        best=_best(entries, checkpoint_state),
        parameters=None if newest is None else count_stored(newest),
    )


def _newest_checkpoint(folder: Path) -> tuple[Path | None, dict[str, Any]]:
    """Return the checkpoint of the last step, which may be the average of removed ones, and its state."""
    newest, state = None, dict[str, Any]()
    steps = reversed(saved_steps(folder))
    step = next((step for step in steps if is_whole(folder / step_name(step))), None)
    if step is not None:
        newest = folder / step_name(step)
        state = read_state(newest)
    if is_whole(folder / AVERAGE):
        averaged = read_state(folder / AVERAGE)
        if _integer(averaged.get("step")) > _integer(state.get("step")):
            return folder / AVERAGE, averaged
    return newest, state


def _changed(run: Run, unmodified: Mapping[str, Any]) -> Changes:
    """Return the keys whose values in the recipe file (`unmodified`) differ from the run's."""
    values = dict(flatten(run.recipe.model_dump()))
    ignored = {"name", *_OWN_COLUMNS, *keys_changing(run.recipe, NOTHING)}
    changes = {key: (before, values.get(key)) for key, before in unmodified.items() if key not in ignored}
    return {key: (before, after) for key, (before, after) in changes.items() if before != after}


def is_done(step: int, stale: int, steps: int, patience: int) -> bool:
    """Return whether a training is over: all steps done, or `patience` validations in a row without improvement."""
    return step >= steps or 0 < patience <= stale


def _state(run: Run, checkpoint_state: Mapping[str, Any]) -> tuple[State, str | None]:
    """Return the state of a run and, if its last training failed, the error."""
    locked = is_locked(run.folder / LOCK)
    error = read_failure(run.folder)  # read after the lock, which is released after the file is removed
    if locked or (locked is None and error == KILLED):
        return "running", None
    if error is not None:
        return "failed", error
    training = run.recipe.training
    step, stale = _integer(checkpoint_state.get("step")), _integer(checkpoint_state.get("stale"))
    trained = bool(checkpoint_state) and is_done(step, stale, training.steps, training.patience)
    averaged = not training.average or (run.checkpoints_folder / AVERAGE).is_dir()
    return ("finished" if trained and averaged else "stopped"), None


def _best(entries: Sequence[Mapping[str, Any]], checkpoint_state: Mapping[str, Any]) -> Best | None:
    """Return the validation that a checkpoint names as the best, or None if the log lacks it.

    Its metric is the one with the score.
    """
    step, score = checkpoint_state.get("best_step"), checkpoint_state.get("best_score")
    if not isinstance(step, int) or not isinstance(score, (int, float)):
        return None
    validation: Mapping[str, Any] = {}
    for entry in entries:
        if entry.get("event") == "validation" and entry["step"] == step:
            validation = entry
    metrics = {key: value for key, value in validation.items() if type(value) in (int, float)}
    metrics = {key: value for key, value in metrics.items() if key not in ("step", "seconds")}
    metric = next((name for name, value in metrics.items() if value in (score, -score)), None)
    return None if metric is None else Best(step, metric, metrics[metric], metrics)


def count_stored(checkpoint: Path) -> Parameters | None:
    """Count the parameters of a checkpoint from the header of its file; None if the header cannot be read."""
    try:
        with (checkpoint / "model.safetensors").open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _MAX_HEADER_BYTES)))
        sizes = {name: prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return None
    without_embeddings = sum(size for name, size in sizes.items() if not _VOCABULARY_TENSORS.search(name))
    return Parameters(sum(sizes.values()), without_embeddings)


def _integer(value: Any) -> int:
    """Return an integer from a JSON file; 0 for other values."""
    return value if isinstance(value, int) else 0


def run_tables(summaries: Sequence[Summary]) -> Iterator[Table]:
    """Yield a table for each recipe, without the columns that are empty in all rows."""
    by_recipe = sorted(summaries, key=lambda summary: summary.recipe.name)
    for recipe, group in groupby(by_recipe, key=lambda summary: summary.recipe.name):
        yield _run_table(recipe, list(group))


def _run_table(recipe: str, summaries: Sequence[Summary]) -> Table:
    metrics = {summary.best.metric for summary in summaries if summary.best is not None}
    best = metrics.pop() if len(metrics) == 1 else "best"
    columns: dict[str, list[str]] = {
        "run": [summary.run.name.partition("/")[2] for summary in summaries],
        "changed": [_format_changes(summary) for summary in summaries],
        "tag": [summary.tag or "" for summary in summaries],
        "seed": [str(summary.recipe.training.seed) for summary in summaries],
        "steps": [f"{summary.step}/{summary.recipe.training.steps}" for summary in summaries],
        "state": [summary.state for summary in summaries],
        best: [format_best(summary, best) for summary in summaries],
        "params": [_format_millions(summary.parameters) for summary in summaries],
        "min": [_NO_VALUE if summary.minutes is None else f"{summary.minutes:.1f}" for summary in summaries],
    }
    shown = {name: cells for name, cells in columns.items() if any(cells)}
    text_columns = [index for index, name in enumerate(shown) if name in ("changed", "tag", "state")]
    return Table(f"\n{recipe}", list(shown), list(zip(*shown.values(), strict=True)), text_columns)


def _format_millions(parameters: Parameters | None) -> str:
    return _NO_VALUE if parameters is None else f"{parameters.total / 1e6:.2f}M"


def _format_changes(summary: Summary) -> str:
    """Return the changed keys as in ``--set``, without ``model.`` and ``training.``; steps have their own column."""
    changes = []
    for key, (_, value) in summary.changed.items():
        if key != "training.steps":
            name = key.removeprefix("model.").removeprefix("training.")
            text = json.dumps(value) if value is None or isinstance(value, bool) else str(value)
            changes.append(f"{name}={text}")
    return " ".join(changes)


def format_best(summary: Summary, metric: str = "") -> str:
    """Return the best score of a run, with the name of its metric unless that is `metric`."""
    if summary.best is None:
        return _NO_VALUE
    score = f"{summary.best.value:.4g}"
    return score if metric == summary.best.metric else f"{summary.best.metric} {score}"


def run_differences(first: Run, second: Run) -> Changes:
    """Return the differences of two runs, each with both values: recipe keys, training data, software versions.

    Algebra, n, seed and settings that change no result are ignored. Data are compared by a digest of their source
    files, vocabulary and kept texts.
    """
    ignored = _OWN_COLUMNS | keys_changing(first.recipe, NOTHING)
    recipes = differences(first.recipe, second.recipe)
    changes = {key: values for key, values in recipes.items() if key not in ignored}
    for name, describe in (("data", _data_digest), ("made with", _versions)):
        with suppress(RunError):  # the run lacks the record
            values = (describe(first), describe(second))
            if values[0] != values[1]:
                changes[name] = values
    return changes


def same_model(first: Run, second: Run) -> bool:
    """Return whether two runs differ only in the seed and the software versions."""
    models = {(run.recipe.name, run.recipe.model.algebra, run.recipe.model.n) for run in (first, second)}
    return len(models) == 1 and not run_differences(first, second).keys() - {"made with"}


def difference_lines(changes: Mapping[str, tuple[Any, Any]], baseline: str = "the baseline") -> list[str]:
    """Return a line for each difference: ``training.steps: 2,000; 4,000 in the baseline``."""
    lines = []
    for name, (baseline_value, value) in changes.items():
        lines.append(f"{name}: {format_value(value)}; {format_value(baseline_value)} in {baseline}")
    return lines


def format_value(value: Any) -> str:
    """Return a setting's value for people: thousands separated, None as ``none``."""
    if value is None:
        return "none"
    return f"{value:,}" if type(value) is int else str(value)


def _data_digest(run: Run) -> str:
    data = run.data()
    identity = {key: data.get(key) for key in ("corpus", "token_types", "labels")}
    identity["sources"] = sorted(str(source.get("sha256")) for source in data.get("sources", ()))
    kept = {name: split.get("kept") for name, split in data.get("splits", {}).items()}
    return sha256_text([json.dumps([identity, kept], sort_keys=True)])[:8]


def _versions(run: Run) -> str:
    environment = run.environment()
    libraries = environment.get("libraries") or {}
    return f"phmctl {environment.get('phmctl')} at {str(environment.get('git'))[:7]}, torch {libraries.get('torch')}"
