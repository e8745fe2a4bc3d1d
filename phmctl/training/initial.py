"""``training.initialise_from``: begin with the tensors of another run, as in fine-tuning.

Every tensor of the same name and shape is taken; with ``model.composition_start: base`` also attention's output maps,
by the compositions of heads that begin as these; and of rules held as factors, where the model has a lower rank, the
terms of the largest norm. What a person must know is said, and kept in the new run's
environment: the source run, its checkpoint and SHA-256, and which tensors were taken, are new, or were left.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from phmctl.checkpoints import checkpoint_digest, model_tensors, read_checkpoint
from phmctl.errors import DataError, RunError
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

_WIDTHS = ("kind", "width", "embedding_width")  # keys of a model's section that all tensors depend on
_OUTPUT = re.compile(r"attention\.output\.(?=[^.]+$)")
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")


@dataclass(frozen=True)
class Start:
    """Where a model's first tensors come from.

    Attributes:
        source: the run's folder.
        checkpoint: the checkpoint's name.
        step: its step.
        sha256: of the file with its model.
        tensors: those that are taken, by name.
        new: names of the model's tensors that the source does not have, or has in another shape.
        left: names of the source's tensors that the model does not have, or has in another shape.
    """

    source: Path
    checkpoint: str
    step: int
    sha256: str
    tensors: Mapping[str, Tensor]
    new: tuple[str, ...]
    left: tuple[str, ...]

    def noted(self) -> dict[str, Any]:
        """Return what the run's environment keeps."""
        kept = {
            "run": str(self.source.resolve()),
            "checkpoint": self.checkpoint,
            "step": self.step,
            "sha256": self.sha256,
            "taken": list(self.tensors),
            "new": list(self.new),
            "left": list(self.left),
        }
        return {"initialised_from": kept}

    def words(self) -> str:
        """Return what was taken, is new and was left, for people; equal layers in one name."""
        parts = [
            f"initialised: {len(self.tensors)} tensors taken from {self.source} ({self.checkpoint}, step {self.step})"
        ]
        for verb, names in (("new", self.new), ("left", self.left)):
            if names:
                parts.append(f"{len(names)} {verb}: {_folded(names)}")
        return "; ".join(parts)


def find_start(recipe: Recipe, task: "Task") -> Start | None:
    """Return what a recipe's model begins with, or None where it begins at random. Nothing is changed.

    Raises:
        RunError: the run of ``training.initialise_from`` is missing or damaged; has another task, model, width or
            vocabulary; or has no tensor that fits.
    """
    run = _source(recipe)
    if run is None:
        return None
    task.check_vocabulary(run)
    name = "best" if "best" in run.checkpoint_names() else "last"
    return run.use(name, lambda found: _read(run, run.checkpoint(found), task, recipe))


def planned_start(recipe: Recipe, data: Path) -> Start | None:
    """Return what :func:`find_start` would; None also where the data is not prepared: then the run alone is checked."""
    from phmctl.tasks.registry import kind_of

    if _source(recipe) is None:
        return None
    try:
        task = kind_of(recipe).open(recipe, data)
    except DataError:
        return None
    return find_start(recipe, task)


def take(model: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors into those of a model that have their names."""
    own = model_tensors(model)
    with torch.no_grad():
        for name, tensor in tensors.items():
            own[name].copy_(tensor)


def _source(recipe: Recipe) -> Run | None:
    """Return the run of ``training.initialise_from``, or None where none is named."""
    if recipe.training.initialise_from is None:
        return None
    run = Run.open(Path(recipe.training.initialise_from))
    _check_model(run, recipe)
    return run


def _check_model(run: Run, recipe: Recipe) -> None:
    """Refuse a run of another task, or with a model that shares no shape with the recipe's."""
    where = f"training.initialise_from: {run.folder}"
    if run.recipe.task != recipe.task:
        raise RunError(f"{where} was trained for task {run.recipe.task!r}, and this recipe is for {recipe.task!r}")
    for key in _WIDTHS:
        theirs, ours = getattr(run.recipe.model, key, None), getattr(recipe.model, key, None)
        if theirs != ours:
            raise RunError(
                f"{where} has model.{key} = {theirs}, and this recipe has {ours}: no tensor would fit; "
                f"set model.{key}={theirs}, or take another run"
            )


def _read(run: Run, folder: Path, task: "Task", recipe: Recipe) -> Start:
    found = read_checkpoint(folder, ("model",))
    theirs = found.tensors["model"]
    own = {name: tensor.shape for name, tensor in model_tensors(task.build_model(torch.device("meta"))).items()}
    heads = _outputs(theirs) if getattr(recipe.model, "composition_start", None) == "base" else {}
    offered = {**heads, **theirs, **_strongest_terms(theirs, own)}
    taken = {name: tensor for name, tensor in offered.items() if own.get(name) == tensor.shape}
    if not taken:
        raise RunError(f"training.initialise_from: no tensor of {folder} has name and shape of one of this model's")
    used = {id(tensor) for tensor in taken.values()}
    new = tuple(name for name in own if name not in taken)
    left = tuple(name for name, tensor in theirs.items() if id(tensor) not in used and name not in taken)
    digest = checkpoint_digest(folder, "model")
    return Start(run.folder, folder.name, int(found.state["step"]), digest, taken, new, left)


def _outputs(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return attention's output maps by the names that they have in a bilinear composition of the heads."""
    found = ((_OUTPUT.sub("attention.output.V.maps.0.", name), tensor) for name, tensor in tensors.items())
    return {name: tensor for name, tensor in found if name not in tensors}


def _strongest_terms(theirs: Mapping[str, Tensor], own: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """Return the factors of rules that have more terms than the model's, cut to the terms of the largest norm."""
    found: dict[str, Tensor] = {}
    for name, W in theirs.items():
        layer, _, last = name.rpartition(".")
        shape = own.get(name, W.shape)
        if last != "W" or len(shape) != 2 or len(W) != shape[0] or W.shape[1] <= shape[1]:
            continue
        U, V = theirs[f"{layer}.U"], theirs[f"{layer}.V"]  # (n, R), (R, n)
        strength = W.norm(dim=0) * U.norm(dim=0) * V.norm(dim=1)  # (R,)
        terms = strength.topk(shape[1]).indices.sort().values
        found |= {name: W[:, terms], f"{layer}.U": U[:, terms], f"{layer}.V": V[terms]}
    return found


def _folded(names: Iterable[str]) -> str:
    """Return the modules that tensors are of, each once, with the numbers of layers left out."""
    modules = (_NUMBER.sub("*", name.rpartition(".")[0] or name) for name in names)
    return ", ".join(dict.fromkeys(modules))
