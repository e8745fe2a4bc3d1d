"""What a run is, read from its files alone: settings, state, best score, size, results. Nothing here imports torch."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Literal

from phmctl.checkpoints import AVERAGE, read_state, step_name, whole_steps
from phmctl.errors import PhmctlError, RecipeError, RunError
from phmctl.files import is_locked
from phmctl.recipe.schema import Recipe
from phmctl.recipe.sections import NOTHING, keys_changing
from phmctl.runs.find import select_runs
from phmctl.runs.metrics import read_entry
from phmctl.runs.names import ATTEMPT, ENVIRONMENT, LOCK, RECIPE
from phmctl.runs.results import Result, read_results
from phmctl.runs.run import Run, read_recipe

State = Literal["running", "finished", "stopped", "failed"]

_COLUMNS = {"name", "model.algebra", "model.n", "training.seed"}  # differences that have a column of their own
_VOCABULARY = re.compile(r"(?:^|\.)(?:\w*embedding|generator)\.")  # tensors of the vocabulary's size
_HEADER = 1 << 24  # bytes of a safetensors header, at most


@dataclass(frozen=True)
class Best:
    """The validation that chose the best checkpoint."""

    step: int  # of the checkpoint
    metric: str  # what decided, as the log calls it: bleu, accuracy, loss
    value: float  # of it
    metrics: Mapping[str, float]  # all that the validation found


@dataclass(frozen=True)
class Parameters:
    """How many numbers a model has; `embeddings` are those of its tables and of its generator."""

    total: int
    embeddings: int

    @property
    def without_embeddings(self) -> int:
        """All that does not grow with the vocabulary."""
        return self.total - self.embeddings


@dataclass(frozen=True)
class Summary:
    """A run, as its files tell it."""

    run: Run  # the run
    tag: str | None  # the name that train --tag gave it
    # by key, the value in the recipe as it was written, and that in the run; without algebra, n and seed, and
    # without what changes nothing that is trained.
    changed: Mapping[str, tuple[Any, Any]]
    unmodified_known: bool  # whether it is known what the recipe was as written; otherwise `changed` is empty
    state: State  # running (a process holds it), finished, stopped (it can be resumed), failed
    reason: str | None  # why it failed
    step: int  # of the newest checkpoint or log line
    seconds: float | None  # of training, None where the log does not say
    best: Best | None  # the best validation, None before the first
    parameters: Parameters | None  # None where there is no checkpoint
    results: tuple[Result, ...]  # what eval wrote into it

    @property
    def recipe(self) -> Recipe:
        return self.run.recipe

    @property
    def minutes(self) -> float | None:
        return None if self.seconds is None else self.seconds / 60

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


@dataclass(frozen=True)
class Damaged:
    """A folder that should be a run and cannot be read, and why."""

    folder: Path
    problem: str

    def as_json(self) -> dict[str, Any]:
        return {"run": str(self.folder), "problem": self.problem}


def list_runs(names: Sequence[str | Path] = (), root: Path | None = None) -> list[Summary | Damaged]:
    """What is known of some runs, or of all below the root; see :func:`phmctl.runs.find.select_runs`."""
    return [_summarise_any(folder) for folder in select_runs(names, root)]


def _summarise_any(folder: Path) -> Summary | Damaged:
    try:
        return summarise(folder)
    except (PhmctlError, OSError, ValueError, RecursionError) as error:
        return Damaged(folder, str(error).split("\n")[0])


def summarise(folder: Path) -> Summary:
    if not (folder / RECIPE).is_file():
        raise RunError(f"{folder} is not a run: {RECIPE} is missing")
    run = Run(folder, read_recipe(folder / RECIPE))
    environment = run.environment() if (folder / ENVIRONMENT).is_file() else {}
    changed = _changed(run.recipe, environment)
    whole = whole_steps(run.checkpoints_folder)
    newest = run.checkpoints_folder / step_name(whole[-1]) if whole else None
    state = {} if newest is None else read_state(newest)
    last, validations = _read_log(run.metrics_path)
    how, reason = _state(run, state)
    return Summary(
        run,
        _text(environment.get("tag")),
        changed or {},
        changed is not None,
        how,
        reason,
        max(_count(state.get("step")), _count(last.get("step"))),
        _number(last.get("seconds")),
        _best(state, validations),
        None if newest is None else count_stored(newest),
        tuple(read_results(run)),
    )


# ------------------------------------------------------------------------------------------------------ what changed


def _changed(recipe: Recipe, environment: Mapping[str, Any]) -> dict[str, tuple[Any, Any]] | None:
    """What differs from the recipe as written; None where that is not known."""
    from phmctl.recipe.loading import flatten

    own = dict(flatten(recipe.model_dump()))
    written = environment.get("unmodified")
    if not isinstance(written, dict):
        written = _shipped(recipe.name)
    if written is None:
        return None
    apart = _COLUMNS | keys_changing(recipe, NOTHING)
    return {key: (value, own.get(key)) for key, value in written.items() if key not in apart and own.get(key) != value}


@cache
def _shipped(name: str) -> dict[str, Any] | None:
    """The shipped recipe of this name, flat; None where there is none."""
    from phmctl.recipe.loading import flatten, load_recipe
    from phmctl.shipped import shipped_names

    try:
        return dict(flatten(load_recipe(name).model_dump())) if name in shipped_names("recipes") else None
    except RecipeError:
        return None


# ------------------------------------------------------------------------------------------------------------- state


def is_done(step: int, stale: int, steps: int, patience: int) -> bool:
    """Whether all `steps` are done, or so many validations in a row as `patience` says were no better."""
    return step >= steps or 0 < patience <= stale


_KILLED = "it ended without a word: was it killed?"


def _state(run: Run, state: Mapping[str, Any]) -> tuple[State, str | None]:
    """A run's state, and why its last training failed if it did."""
    held, attempt = is_locked(run.folder / LOCK), _KILLED  # in this order: the note goes before the lock
    try:
        noted = json.loads((run.folder / ATTEMPT).read_bytes())
        attempt = noted["error"] if isinstance(noted["error"], str) else _KILLED
    except FileNotFoundError:
        attempt = ""
    except (OSError, ValueError, RecursionError, TypeError, LookupError):
        pass
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


# ----------------------------------------------------------------------------------------------------- log and scores


def _read_log(path: Path) -> tuple[dict[str, Any], dict[int, dict[str, Any]]]:
    """The last entry that has a time, and the validations by their step. Other lines, many, are not parsed."""
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError:
        return {}, {}
    validations = (read_entry(line) for line in lines if b'"validation"' in line)
    last = next((entry for line in reversed(lines) if (entry := read_entry(line)) and "seconds" in entry), {})
    found = (entry for entry in validations if entry is not None and entry.get("event") == "validation")
    return last, {entry["step"]: entry for entry in found}


def _best(state: Mapping[str, Any], validations: Mapping[int, Mapping[str, Any]]) -> Best | None:
    """The validation that a checkpoint's state calls the best; its metric is the one that has the score."""
    step, score = state.get("best_step"), state.get("best_score")
    if not isinstance(step, int) or not isinstance(score, (int, float)):
        return None
    entry = validations.get(step, {})
    metrics = {name: value for name, value in entry.items() if name not in ("step", "seconds") and _is_number(value)}
    metric = next((name for name, value in metrics.items() if value in (score, -score)), None)
    return Best(step, "score", score, metrics) if metric is None else Best(step, metric, metrics[metric], metrics)


def count_stored(checkpoint: Path) -> Parameters | None:
    """Count the numbers of a checkpoint's model from its header; None where that cannot be read."""
    try:
        with (checkpoint / "model.safetensors").open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(min(length, _HEADER)))
        sizes = {name: prod(entry["shape"]) for name, entry in header.items() if name != "__metadata__"}
    except (OSError, ValueError, RecursionError, AttributeError, KeyError, TypeError):
        return None
    return Parameters(sum(sizes.values()), sum(size for name, size in sizes.items() if _VOCABULARY.search(name)))


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _number(value: Any) -> float | None:
    return float(value) if _is_number(value) else None


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
