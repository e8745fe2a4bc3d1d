"""``training.initialise_from``: start from the tensors of another run, as in fine-tuning.

Tensors with the same name and shape are copied. Where the source has a dense weight, or a rule of another form, the
model gets the nearest sum of Kronecker products. With ``model.composition_start: base`` the compositions of heads get
the weights of the attention's output maps that they replace. The new run's environment records the source
run, its checkpoint and SHA-256, and the names of the copied, new and unused tensors.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from phmctl.errors import RunError
from phmctl.nn.linear import KroneckerWeight
from phmctl.nn.structures import PARAMETER_NAMES, RULE_NAMES, KroneckerSum, structure_of
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.saving import model_tensors
from phmctl.storage import read_checkpoint

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

_OUTPUT_MAP = re.compile(r"attention\.output\.(?=[^.]+$)")
_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class Start:
    """The tensors of another run that a training starts from."""

    tensors: Mapping[str, Tensor]  # by their names in the new model
    # for the environment: run, checkpoint, step, sha256; names of copied ("taken"), new and unused ("left") tensors
    record: Mapping[str, Any]

    def summary(self) -> str:
        """Return the number of copied tensors and the modules of new and unused ones; layer numbers become ``*``."""
        run, checkpoint = self.record["run"], self.record["checkpoint"]
        parts = [f"initialised: {len(self.tensors)} tensors taken from {run} ({checkpoint})"]
        for group in ("new", "left"):
            modules = [_LAYER_NUMBER.sub("*", name.rpartition(".")[0] or name) for name in self.record[group]]
            if modules:
                parts.append(f"{group}: {', '.join(dict.fromkeys(modules))}")
        return "; ".join(parts)


def find_start(recipe: Recipe, task: "Task | None", root: Path | None = None) -> Start | None:
    """Return the tensors that a recipe's model starts from, or None if it starts at random.

    Without a task (its data is not prepared) the source run is checked and None is returned.

    Raises:
        RunError: the run of ``training.initialise_from`` is missing or damaged; has another task, model, width or
            vocabulary; or none of its tensors fits.
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
    name = "best" if "best" in run.checkpoint_names() else "last"
    return run.load_checkpoint(name, lambda checkpoint: _read(run, run.checkpoint(checkpoint), task, recipe))


def differing_shape_key(first: Recipe, second: Recipe) -> str | None:
    """Return the first model key that decides the shapes of all tensors and differs between two recipes."""
    for key in ("kind", "width", "embedding_width"):
        if getattr(first.model, key, None) != getattr(second.model, key, None):
            return key
    return None


def _read(run: Run, folder: Path, task: "Task", recipe: Recipe) -> Start:
    checkpoint = read_checkpoint(folder, ("model",))
    source = checkpoint.tensors["model"]
    model = task.build_model(torch.device("meta"))
    shapes = {name: tensor.shape for name, tensor in model_tensors(model).items()}
    available = dict(source)
    if getattr(recipe.model, "composition_start", None) == "base":
        # A bilinear composition holds the attention's output map under another name.
        renamed = {_OUTPUT_MAP.sub("attention.output.V.maps.0.", name): tensor for name, tensor in source.items()}
        available = renamed | available
    copied = {name: tensor for name, tensor in available.items() if shapes.get(name) == tensor.shape}
    same_sharing = getattr(run.recipe.model, "rules", None) == getattr(recipe.model, "rules", None)
    _copy_nearest_sums(copied, available, model, shapes.keys(), run.recipe.model.algebra, same_sharing=same_sharing)
    if not copied:
        raise RunError(f"training.initialise_from: no tensor of {folder} has the name and shape of a model tensor")
    record = {
        "run": str(run.folder.resolve()),
        "checkpoint": folder.name,
        "step": checkpoint.state["step"],
        "taken": list(copied),
        "new": [name for name in shapes if name not in copied],
        "left": _unused(source, copied),
    }
    return Start(copied, record)


def _unused(source: Mapping[str, Tensor], copied: Mapping[str, Tensor]) -> list[str]:
    """Return the source tensors that were neither copied nor part of a weight whose nearest sum was taken."""
    copied_ids = {id(tensor) for tensor in copied.values()}  # a tensor may be copied under another name
    unused = []
    for name, tensor in source.items():
        layer, _, parameter = name.rpartition(".")
        has_nearest_sum = parameter in PARAMETER_NAMES and f"{layer}.S" in copied
        if id(tensor) not in copied_ids and name not in copied and not has_nearest_sum:
            unused.append(name)
    return unused


def _copy_nearest_sums(
    copied: dict[str, Tensor],
    source: Mapping[str, Tensor],
    model: nn.Module,
    names: Set[str],
    algebra: str,
    *,
    same_sharing: bool,
) -> None:
    """In modules whose rule is not copied, replace A and S by those nearest to the source's weight.

    A copied S needs its rule: if the rule is not copied and no nearest sum exists, S starts at random. `names` are the
    model's tensors, with a shared rule once. A map that uses the rule of another map keeps its copied S only if the
    same maps share rules in the source (`same_sharing`) and all rules are copied.
    """
    all_rules_copied = all(name in copied for name in names if name.rpartition(".")[2] in RULE_NAMES)
    for name, module in model.named_modules():
        if not isinstance(module, KroneckerWeight) or not isinstance(module.structure, KroneckerSum):
            continue
        tensor_names = {f"{name}.{part}" for part in RULE_NAMES}
        rule = tensor_names & names
        if f"{name}.weight" in source or rule != tensor_names & source.keys():
            same_rule = False
        elif rule:
            same_rule = rule <= copied.keys()
        else:  # a fixed rule, or the rule of another map
            same_rule = module.algebra == algebra and (module.owns_rule or (same_sharing and all_rules_copied))
        if same_rule:
            continue
        copied.pop(f"{name}.S", None)
        weight = _source_weight(source, name, algebra)
        if weight is not None and weight.shape == (module.rows, module.columns) and module.owns_rule:
            nearest = module.structure.nearest(weight) or {}
            copied |= {f"{name}.{part}": tensor for part, tensor in nearest.items()}


def _source_weight(source: Mapping[str, Tensor], name: str, algebra: str) -> Tensor | None:
    """Return the weight of a map or table of the source, or None if its tensors do not determine one."""
    tensors = {part: source[f"{name}.{part}"] for part in PARAMETER_NAMES if f"{name}.{part}" in source}
    structure = structure_of(tensors, algebra)
    return None if structure is None else structure.dense(tensors)
