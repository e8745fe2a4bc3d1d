"""``training.initialise_from``: begin with the tensors of another run, as in fine-tuning.

Every tensor of the same name and shape is used; where the source has a dense weight or another kind of rule and the
model a rule and components, the nearest sum of Kronecker products; with ``model.composition_start: base`` also
attention's output maps, by the compositions of heads that begin as these. The new run's environment keeps the source
run, its checkpoint and SHA-256, and which tensors were used, are new, or were left.
"""

import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from phmctl.algebra.bilinear import Factors, recompose
from phmctl.algebra.kronecker import fixed_rule, kronecker_sum, nearest_sum
from phmctl.checkpoints import checkpoint_digest, model_tensors, read_checkpoint
from phmctl.dimension import FIXED_DIMENSION
from phmctl.errors import RunError
from phmctl.nn.linear import KroneckerWeight
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

_OUTPUT = re.compile(r"attention\.output\.(?=[^.]+$)")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class Start:
    tensors: Mapping[str, Tensor]  # those that the model begins with, by name
    # what the run's environment keeps: run, checkpoint, step, SHA-256; names of tensors that are taken, new or left
    noted: Mapping[str, Any]

    def words(self) -> str:
        """Return what was used, is new and was left, for people; equal layers in one name."""
        parts = ["initialised: {0} tensors taken from {run} ({checkpoint})".format(len(self.tensors), **self.noted)]
        for verb in ("new", "left"):  # the modules of these tensors, each once, with the numbers of layers left out
            modules = (_NUMBER.sub("*", name.rpartition(".")[0] or name) for name in self.noted[verb])
            parts += [f"{verb}: {', '.join(dict.fromkeys(modules))}"] if self.noted[verb] else []
        return "; ".join(parts)


def find_start(recipe: Recipe, task: "Task | None") -> Start | None:
    """Return what a recipe's model begins with, or None where it begins at random. Nothing is changed.

    None too without a task, where the data is not prepared: then the run alone is checked.

    RunError: the run of ``training.initialise_from`` is missing or damaged; has another task, model, width or
    vocabulary; or has no tensor that fits.
    """
    if recipe.training.initialise_from is None:
        return None
    run = Run.open(recipe.training.initialise_from)
    where = f"training.initialise_from: {run.folder}"
    if run.recipe.task != recipe.task:
        raise RunError(f"{where} was trained for task {run.recipe.task!r}, and this recipe is for {recipe.task!r}")
    if key := other_shape(run.recipe, recipe):
        theirs, ours = getattr(run.recipe.model, key, None), getattr(recipe.model, key, None)
        raise RunError(
            f"{where} has model.{key} = {theirs}, and this recipe has {ours}: no tensor would fit; "
            f"set model.{key}={theirs}, or name another run"
        )
    if task is None:
        return None
    task.check_vocabulary(run)
    name = "best" if "best" in run.checkpoint_names() else "last"
    return run.use(name, lambda checkpoint: _read(run, run.checkpoint(checkpoint), task, recipe))


def other_shape(one: Recipe, other: Recipe) -> str | None:
    """Return the first key of two models that differs of those which the shapes of all tensors depend on."""
    keys = ("kind", "width", "embedding_width")
    return next((key for key in keys if getattr(one.model, key, None) != getattr(other.model, key, None)), None)


def _read(run: Run, folder: Path, task: "Task", recipe: Recipe) -> Start:
    checkpoint = read_checkpoint(folder, ("model",))
    theirs = checkpoint.tensors["model"]
    model = task.build_model(torch.device("meta"))
    shapes = {name: tensor.shape for name, tensor in model_tensors(model).items()}
    heads = {}
    if getattr(recipe.model, "composition_start", None) == "base":  # the names that a bilinear composition gives them
        heads = {_OUTPUT.sub("attention.output.V.maps.0.", name): tensor for name, tensor in theirs.items()}
    offered = {**heads, **theirs}
    used = {name: tensor for name, tensor in offered.items() if shapes.get(name) == tensor.shape}
    shared = [getattr(each.model, "rules", None) for each in (run.recipe, recipe)]
    _take_sums(used, offered, model, shapes.keys(), run.recipe.model.algebra, shared[0] == shared[1])
    if not used:
        raise RunError(f"training.initialise_from: no tensor of {folder} has name and shape of one of this model's")
    ids = {id(tensor) for tensor in used.values()}

    def summed(name: str) -> bool:  # a sum's S is taken of all parts of the source's weight
        layer, _, part = name.rpartition(".")
        return part in {"weight", *"AWUVS"} and f"{layer}.S" in used

    noted = {
        "run": str(run.folder.resolve()),
        "checkpoint": folder.name,
        "step": checkpoint.state["step"],
        "sha256": checkpoint_digest(folder, "model"),
        "taken": list(used),
        "new": [name for name in shapes if name not in used],
        "left": [
            name for name, tensor in theirs.items() if id(tensor) not in ids and name not in used and not summed(name)
        ],
    }
    return Start(used, noted)


def _take_sums(
    used: dict[str, Tensor],
    theirs: Mapping[str, Tensor],
    model: nn.Module,
    names: Set[str],
    algebra: str,
    same_sharing: bool,
) -> None:
    """Take A and S nearest to the source's weight where a map or table has another kind of rule than the source's.

    S means nothing without its rule: where neither its own rule is used nor a sum is found, it begins at random. A
    rule that several maps share is among the `names` of the model's tensors once; a map that does not own its rule has
    the source's only where the same maps share rules there (`same_sharing`) and none is lost.
    """
    lost = not same_sharing or any(name.rpartition(".")[2] in {*"AWUV"} and name not in used for name in names)
    for name, module in model.named_modules():
        if not isinstance(module, KroneckerWeight) or module.n == 1:
            continue
        own, its = ({part for part in "AWUV" if f"{name}.{part}" in given} for given in (names, theirs))
        alike = own == its and bool(own or (module.algebra == algebra and (module.owns_rule or not lost)))
        if alike and f"{name}.weight" not in theirs and all(f"{name}.{part}" in used for part in own):
            continue
        used.pop(f"{name}.S", None)
        weight, shape = _weight(theirs, name, algebra), (module.n * module.S.shape[1], module.n * module.S.shape[2])
        if weight is not None and weight.shape == shape and module.owns_rule and not module.holds_factors:
            A, used[f"{name}.S"], _ = nearest_sum(weight, module.n, module.algebra)
            used |= {f"{name}.A": A} if "A" in own else {}


def _weight(tensors: Mapping[str, Tensor], name: str, algebra: str) -> Tensor | None:
    """Return the weight of a map or table, dense or the sum that its rule and components make; None: it has none."""
    S, A = tensors.get(f"{name}.S"), tensors.get(f"{name}.A")
    if S is None:
        return tensors.get(f"{name}.weight")
    if f"{name}.W" in tensors:
        A = recompose(Factors(*(tensors[f"{name}.{part}"] for part in "WUV")))
    elif A is None and algebra in FIXED_DIMENSION:
        A = fixed_rule(algebra, dtype=S.dtype)
    return None if A is None or len(A) != len(S) else kronecker_sum(A, S)
