"""A training that starts from the tensors of another run, as in fine-tuning.

``training.initialise_from`` copies tensors with the same name and shape. If the source has other rules or dense
weights, the model gets the nearest sums of Kronecker products. The new run's environment records the source run, the
checkpoint, and the names of the copied, new and unused tensors.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from phmctl.console import note
from phmctl.errors import RunError
from phmctl.nn.linear import KroneckerWeight
from phmctl.nn.structures import PARAMETER_NAMES, KroneckerSum, structure_of
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.saving import model_tensors
from phmctl.storage import AVERAGE, read_checkpoint

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_RULE_KEYS = ("algebra", "n", "rules", "rank")  # model keys that decide which rule a map has


@dataclass(frozen=True)
class Start:
    """The tensors of another run that a training starts from."""

    tensors: Mapping[str, Tensor]  # by the names in the new model
    # for the environment: run, checkpoint, step, and the names of copied ("taken"), new and unused ("left") tensors
    record: Mapping[str, Any]

    def summary(self) -> str:
        """Return the number of copied tensors and the modules of new and unused ones, with ``*`` for layer numbers."""
        run, checkpoint = self.record["run"], self.record["checkpoint"]
        parts = [f"initialised: {len(self.tensors)} tensors taken from {run} ({checkpoint})"]
        for group in ("new", "left"):
            modules = [_LAYER_NUMBER.sub("*", name.rpartition(".")[0] or name) for name in self.record[group]]
            if modules:
                parts.append(f"{group}: {', '.join(dict.fromkeys(modules))}")
        return "; ".join(parts)


def find_start(recipe: Recipe, task: "Task | None", root: Path | None = None) -> Start | None:
    """Return the tensors that a recipe's model starts from, with a note, or None if it starts at random.

    Without a task, because the data is not prepared, the source run is checked and None is returned.

    Raises:
        RunError: the run of ``training.initialise_from`` is missing or damaged, or has another task, model, width or
            vocabulary, or no tensor that fits.
    """
    if recipe.training.initialise_from is None:
        return None
    run = Run.open(recipe.training.initialise_from, root)
    place = f"training.initialise_from: {run.folder}"
    if run.recipe.task != recipe.task:
        raise RunError(f"{place} was trained for task {run.recipe.task!r}; this recipe is for {recipe.task!r}")
    if key := differing_shape_key(run.recipe, recipe):
        source, target = getattr(run.recipe.model, key, None), getattr(recipe.model, key, None)
        raise RunError(
            f"{place} has model.{key} = {source}, this recipe has {target}, so no tensor fits; "
            f"set model.{key}={source}, or name another run"
        )
    if task is None:
        return None
    task.check_vocabulary(run)
    name = next((name for name in ("best", "last", AVERAGE) if name in run.checkpoint_names()), "last")
    start = _read(run, run.checkpoint(name), task, recipe)
    note(start.summary())
    return start


def differing_shape_key(first: Recipe, second: Recipe) -> str | None:
    """Return the first model key that decides the shapes of all tensors and differs between two recipes."""
    for key in ("kind", "width", "embedding_width"):
        if getattr(first.model, key, None) != getattr(second.model, key, None):
            return key
    return None


def _read(run: Run, folder: Path, task: "Task", recipe: Recipe) -> Start:
    """Return the tensors of a checkpoint that a task's model starts with. A copied S has the rule of the source."""
    checkpoint = read_checkpoint(folder, ("model",))
    source = checkpoint.tensors["model"]
    model = task.build_model(torch.device("meta"))
    shapes = {name: tensor.shape for name, tensor in model_tensors(model).items()}
    copied = {name: tensor for name, tensor in source.items() if shapes.get(name) == tensor.shape}
    approximated: set[str] = set()  # names of A and S, or of a dense weight, to which a sum was fitted
    same_rules = all(getattr(run.recipe.model, key, None) == getattr(recipe.model, key, None) for key in _RULE_KEYS)
    for name, module in model.named_modules():
        if same_rules or not isinstance(module, KroneckerWeight) or not isinstance(module.structure, KroneckerSum):
            continue
        copied.pop(f"{name}.S", None)
        tensors = {part: source[f"{name}.{part}"] for part in PARAMETER_NAMES if f"{name}.{part}" in source}
        structure = structure_of(tensors, run.recipe.model.algebra)
        weight = None if structure is None else structure.dense(tensors)
        if weight is None or weight.shape != (module.rows, module.columns) or not module.owns_rule:
            continue
        if nearest := module.structure.nearest(weight):
            copied |= {f"{name}.{part}": tensor for part, tensor in nearest.items()}
            approximated |= {f"{name}.{part}" for part in tensors}
    if not copied:
        raise RunError(f"training.initialise_from: no tensor of {folder} has the name and shape of a model tensor")
    record = {
        "run": str(run.folder.resolve()),
        "checkpoint": folder.name,
        "step": checkpoint.state["step"],
        "taken": list(copied),
        "new": [name for name in shapes if name not in copied],
        "left": [name for name in source if name not in copied and name not in approximated],
    }
    return Start(copied, record)
