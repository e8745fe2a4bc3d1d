"""What runs are, by their files alone: settings, state, best score, size, results; and what two of them differ in.

Nothing here imports torch.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import groupby
from math import prod
from pathlib import Path
from typing import Any, Literal

from phmctl.checkpoints import AVERAGE, read_state, step_name, whole_steps
from phmctl.console import Table, warn
from phmctl.errors import PhmctlError, RunError
from phmctl.files import is_locked, read_json_object, sha256_text
from phmctl.recipe import flatten
from phmctl.recipe.loading import differences
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.recipe.schema import Recipe
from phmctl.runs.find import ATTEMPT, LOCK, RECIPE, select_runs
from phmctl.runs.results import Result, read_metrics, read_results
from phmctl.runs.run import Run, read_recipe

State = Literal["running", "finished", "stopped", "failed"]

_COLUMNS = {"model.algebra", "model.n", "training.seed"}  # differences that have a column of their own
_NONE = "–"
_KILLED = "it ended without a word: was it killed?"
_HEADER = 1 << 24  # bytes of a safetensors header, at most
_VOCABULARY = re.compile(r"(?:^|\.)(?:\w*embedding|generator)\.")  # tensors of the vocabulary's size


@dataclass(frozen=True)
class Best:
    step: int  # of the checkpoint
    metric: str  # what decided, as the log calls it: bleu, accuracy, loss
    value: float  # of it
    metrics: Mapping[str, float]  # all that the validation found


@dataclass(frozen=True)
class Parameters:
    """How many numbers a model has, and how many without its tables and its generator."""

    total: int
    without_embeddings: int  # all that does not grow with the vocabulary


@dataclass(frozen=True)
class Summary:
    run: Run  # the run
    tag: str | None  # the name that train --tag gave it
    # by key, the value as written and that in the run; without algebra, n, seed, and what changes nothing trained
    changed: Mapping[str, tuple[Any, Any]]
    unmodified_known: bool  # whether it is known what the recipe was as written; otherwise `changed` is empty
    state: State  # running (a process holds it), finished, stopped (it can be resumed), failed
    reason: str | None  # why it failed
    step: int  # of the newest checkpoint or log line
    minutes: float | None  # of training, None where the log does not say
    best: Best | None  # the best validation, None before the first
    parameters: Parameters | None  # None where there is no checkpoint
    results: tuple[Result, ...]  # what eval wrote into it

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    def as_json(self) -> dict[str, Any]:
        recipe = self.recipe
        model, training, sizes = recipe.model, recipe.training, self.parameters
        return {
            "run": str(self.run.folder),
            "name": self.run.name,
            "recipe": recipe.name,
            "task": recipe.task,
            "variant": recipe.variant,
            "algebra": model.algebra,
            "n": model.dimension,
            "changed": {key: {"recipe": old, "run": new} for key, (old, new) in self.changed.items()},
            "unmodified_known": self.unmodified_known,
            "tag": self.tag,
            "seed": training.seed,
            "steps": training.steps,
            "step": self.step,
            "state": self.state,
            "reason": self.reason,
            "best": None if self.best is None else asdict(self.best),
            "parameters": None if sizes is None else sizes.total,
            "without_embeddings": None if sizes is None else sizes.without_embeddings,
            "minutes": self.minutes,
            "results": [result.as_json() for result in self.results],
        }


def list_runs(names: Sequence[str | Path] = (), root: Path | None = None) -> list[Summary]:
    """What is known of some runs, or of all below the root; see :func:`phmctl.runs.find.select_runs`.

    One that cannot be read is left out with a warning.
    """
    found: list[Summary] = []
    for folder in select_runs(names, root):
        try:
            found.append(summarise(folder))
        except (PhmctlError, OSError, ValueError, RecursionError) as error:
            first = str(error).split("\n")[0]
            warn(f"left out: {first}")
    return found


def summarise(folder: Path) -> Summary:
    run = Run(folder, read_recipe(folder / RECIPE))
    environment = run.environment()
    unmodified = environment.get("unmodified")
    written = unmodified if isinstance(unmodified, dict) else None
    own, apart = dict(flatten(run.asked().model_dump())), {"name", *_COLUMNS, *keys_changing(run.recipe, NOTHING)}
    changed = {key: (old, own.get(key)) for key, old in (written or {}).items() if key not in apart}
    whole = whole_steps(run.checkpoints_folder)
    newest = run.checkpoints_folder / step_name(whole[-1]) if whole else None
    state = {} if newest is None else read_state(newest)
    entries = read_metrics(run.metrics_path)
    how, reason = _state(run, state)
    tag, timed = environment.get("tag"), [entry["seconds"] for entry in entries if "seconds" in entry]
    return Summary(
        run,
        tag if isinstance(tag, str) else None,
        {key: (old, new) for key, (old, new) in changed.items() if old != new},
        written is not None,
        how,
        reason,
        max(_count(state.get("step")), max((entry["step"] for entry in entries), default=0)),
        timed[-1] / 60 if timed else None,
        _best(entries, state),
        None if newest is None else count_stored(newest),
        tuple(read_results(run)),
    )


def is_done(step: int, stale: int, steps: int, patience: int) -> bool:
    """Whether all `steps` are done, or so many validations in a row as `patience` says were no better."""
    return step >= steps or 0 < patience <= stale


def _state(run: Run, state: Mapping[str, Any]) -> tuple[State, str | None]:
    """A run's state, and why its last training failed if it did."""
    held, path, attempt = is_locked(run.folder / LOCK), run.folder / ATTEMPT, ""
    if path.exists():  # asked after the lock, for the note goes before it
        attempt = _KILLED
        with suppress(RunError):
            attempt = str(read_json_object(path, RunError, "").get("error") or _KILLED)
    if held or (held is None and attempt == _KILLED):
        return "running", None
    if attempt:
        return "failed", attempt
    training = run.recipe.training
    averaged = not training.average or (run.checkpoints_folder / AVERAGE).is_dir()
    done = bool(state) and is_done(
        _count(state.get("step")), _count(state.get("stale")), training.steps, training.patience
    )
    return ("finished" if done and averaged else "stopped"), None


def _best(entries: Sequence[Mapping[str, Any]], state: Mapping[str, Any]) -> Best | None:
    """The validation that a checkpoint's state calls the best. Its metric is the one that has the score."""
    step, score = state.get("best_step"), state.get("best_score")
    if not isinstance(step, int) or not isinstance(score, (int, float)):
        return None
    found = [entry for entry in entries if entry.get("event") == "validation" and entry["step"] == step]
    numbers = (item for item in (found or [{}])[-1].items() if type(item[1]) in (int, float))
    metrics = {key: value for key, value in numbers if key not in ("step", "seconds")}
    metric = next((name for name, value in metrics.items() if value in (score, -score)), None)
    return Best(step, metric or "score", metrics[metric] if metric else score, metrics)


def count_stored(checkpoint: Path) -> Parameters | None:
    """Count the numbers of a checkpoint's model from its header; None where that cannot be read."""
    try:
        with (checkpoint / "model.safetensors").open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _HEADER)))
        sizes = {name: prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return None
    return Parameters(sum(sizes.values()), sum(size for name, size in sizes.items() if not _VOCABULARY.search(name)))


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def run_tables(found: Sequence[Summary]) -> Iterator[Table]:
    """A table for each recipe. Columns that are empty in all of its rows are left out."""
    for recipe, group in groupby(sorted(found, key=lambda run: run.recipe.name), key=lambda run: run.recipe.name):
        runs = list(group)
        metrics = {run.best.metric for run in runs if run.best is not None}
        best = metrics.pop() if len(metrics) == 1 else "best"
        columns: dict[str, list[str]] = {
            "run": [run.run.name.partition("/")[2] for run in runs],
            "changed": [_changes(run) for run in runs],
            "tag": [run.tag or "" for run in runs],
            "seed": [str(run.recipe.training.seed) for run in runs],
            "steps": [f"{run.step}/{run.recipe.training.steps}" for run in runs],
            "state": [run.state for run in runs],
            best: [score(run, best) for run in runs],
            "params": [_NONE if run.parameters is None else f"{run.parameters.total / 1e6:.2f}M" for run in runs],
            "min": [_NONE if run.minutes is None else f"{run.minutes:.1f}" for run in runs],
        }
        shown = {name: cells for name, cells in columns.items() if any(cells)}
        text = [index for index, name in enumerate(shown) if name in ("changed", "tag", "state")]
        yield Table(f"\n{recipe}", list(shown), list(zip(*shown.values(), strict=True)), text)


def _changes(run: Summary) -> str:
    """What differs from the recipe as written, by the keys of ``--set`` without ``model.`` and ``training.``."""
    return " ".join(
        f"{key.removeprefix('model.').removeprefix('training.')}="
        + (json.dumps(new) if new is None or isinstance(new, bool) else str(new))
        for key, (_, new) in run.changed.items()
        if key != "training.steps"  # which has a column of its own
    )


def score(run: Summary, metric: str = "") -> str:
    """A run's best figure; with its metric's name, unless that is `metric`."""
    if run.best is None:
        return _NONE
    figure = f"{run.best.value:.4g}"
    return figure if metric == run.best.metric else f"{run.best.metric} {figure}"


def run_differences(one: Run, other: Run) -> dict[str, tuple[Any, Any]]:
    """What differs, by name, each with both values: recipe keys, the training data, the versions.

    Left out are algebra, n and seed, and what changes nothing. Data are told apart by the first eight digits of a
    SHA-256 over those of their source files, of the vocabulary and of the texts kept.
    """
    apart = _COLUMNS | keys_changing(one.recipe, NOTHING)
    found = {key: pair for key, pair in differences(one.asked(), other.asked()).items() if key not in apart}
    if "training.minutes" in found:  # one trained by minutes, and has no steps that were asked for
        found.pop("training.steps", None)
    for name, what in (("data", _data_digest), ("made with", _versions)):
        with suppress(RunError):  # it does not say
            pair = (what(one), what(other))
            if pair[0] != pair[1]:
                found[name] = pair
    return found


def same_model(one: Run, other: Run, *apart: str) -> bool:
    """Whether two runs differ in nothing but the seed, the versions that made them, and these keys."""
    left, right = [(each.name, each.model.algebra, each.model.dimension) for each in (one.recipe, other.recipe)]
    return left == right and not run_differences(one, other).keys() - {"made with", *apart}


def difference_lines(found: Mapping[str, tuple[Any, Any]], one: str = "the baseline") -> list[str]:
    """A line for each thing: ``training.steps: 2,000; 4,000 in the baseline``."""
    return [f"{name}: {value_words(other)}; {value_words(first)} in {one}" for name, (first, other) in found.items()]


def _data_digest(run: Run) -> str:
    data = run.data()
    named = {key: data.get(key) for key in ("corpus", "token_types", "labels")}
    named["sources"] = sorted(str(source.get("sha256")) for source in data.get("sources", ()))
    kept = {name: split.get("kept") for name, split in data.get("splits", {}).items()}
    return sha256_text([json.dumps([named, kept], sort_keys=True)])[:8]


def _versions(run: Run) -> str:
    environment = run.environment()
    libraries = environment.get("libraries") or {}
    return f"phmctl {environment.get('phmctl')} at {str(environment.get('git'))[:7]}, torch {libraries.get('torch')}"


def value_words(value: Any) -> str:
    return f"{value:,}" if type(value) is int else "none" if value is None else str(value)
