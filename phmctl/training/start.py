"""How a training starts: as the continuation of a run, or from the tensors of another run, as in fine-tuning.

``training.initialise_from`` copies tensors with the same name and shape. If the source has other rules or dense
weights, the model gets the nearest sums of Kronecker products. With ``model.composition_start: base`` the compositions
of heads get the weights of the attention's output maps that they replace. The new run's environment records the source
run, the checkpoint, and the names of the copied, new and unused tensors.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from phmctl.errors import OutputError, RecipeError, RunError
from phmctl.nn.linear import KroneckerWeight
from phmctl.nn.structures import PARAMETER_NAMES, KroneckerSum, structure_of
from phmctl.recipe.loading import differences
from phmctl.recipe.models import CHOICE, NOTHING, keys_changing
from phmctl.recipe.schema import Recipe
from phmctl.runs import RECIPE, Run
from phmctl.runs.find import ENVIRONMENT
from phmctl.runs.run import describe_environment, write_recipe
from phmctl.saving import model_tensors
from phmctl.storage import (
    AVERAGE,
    MANIFEST,
    MODEL,
    MOMENTS,
    Checkpoint,
    clear,
    discard,
    prune,
    read_checkpoint,
    read_state,
    saved_steps,
    step_name,
    step_of,
    verify_checkpoint,
    whole_steps,
    write_json,
    writing,
)
from phmctl.training.trainer import TrainingState, update_pointers

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

_OUTPUT_MAP = re.compile(r"attention\.output\.(?=[^.]+$)")
_LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=\.|$)")
_RULE_KEYS = ("algebra", "n", "rules", "parametrization", "rank")  # model keys that decide which rule a map has


# ------------------------------------------------------------------------------------------ the tensors of another run


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
    """Return the tensors that a recipe's model starts from, or None if it starts at random.

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
    return run.load_checkpoint(name, lambda checkpoint: _read(run, run.checkpoint(checkpoint), task, recipe))


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
    available = dict(source)
    if getattr(recipe.model, "composition_start", None) == "base":
        # A bilinear composition holds the attention's output map under another name.
        renamed = {_OUTPUT_MAP.sub("attention.output.V.maps.0.", name): tensor for name, tensor in source.items()}
        available = renamed | available
    copied = {name: tensor for name, tensor in available.items() if shapes.get(name) == tensor.shape}
    unused = [name for name, tensor in source.items() if not any(tensor is each for each in copied.values())]
    same_rules = all(getattr(run.recipe.model, key, None) == getattr(recipe.model, key, None) for key in _RULE_KEYS)
    for name, module in model.named_modules():
        if same_rules or not isinstance(module, KroneckerWeight) or not isinstance(module.structure, KroneckerSum):
            continue
        copied.pop(f"{name}.S", None)
        tensors = {part: available[f"{name}.{part}"] for part in PARAMETER_NAMES if f"{name}.{part}" in available}
        structure = structure_of(tensors, run.recipe.model.algebra)
        weight = None if structure is None else structure.dense(tensors)
        if weight is not None and weight.shape == (module.rows, module.columns) and module.owns_rule:
            nearest = module.structure.nearest(weight) or {}
            copied |= {f"{name}.{part}": tensor for part, tensor in nearest.items()}
            unused = [each for each in unused if each not in {f"{name}.{part}" for part in tensors}]
    if not copied:
        raise RunError(f"training.initialise_from: no tensor of {folder} has the name and shape of a model tensor")
    record = {
        "run": str(run.folder.resolve()),
        "checkpoint": folder.name,
        "step": checkpoint.state["step"],
        "taken": list(copied),
        "new": [name for name in shapes if name not in copied],
        "left": unused,
    }
    return Start(copied, record)


# ------------------------------------------------------------------------------------------------- a run is continued


def run_to_resume(root: Path, recipe: Recipe) -> Run | None:
    """Return the newest run that a recipe can resume, with or without a checkpoint, or None.

    RecipeError names the keys that somebody changed in the run's ``recipe.yaml`` although the training depends on them.
    """
    for run in Run.trained_with(root, recipe, _free_to_change(recipe)):
        check_resumable(run, recipe)
        return run
    return None


def _free_to_change(recipe: Recipe) -> set[str]:
    """Return the keys that may change between two trainings of a run.

    ``training.steps`` may unless the schedule is linear, which ends at the last step.
    """
    keys = keys_changing(recipe, CHOICE, NOTHING)
    return keys if recipe.training.schedule == "linear" else keys | {"training.steps"}


def check_resumable(run: Run, recipe: Recipe) -> None:
    """Raise RecipeError if a recipe cannot resume a run, or the run's own recipe cannot any more."""
    trained = run.trained_recipe()
    changes = differences(trained, run.recipe.model_dump(mode="json")) | differences(
        trained, recipe.model_dump(mode="json")
    )
    changed = [key for key in changes if key not in _free_to_change(recipe)]
    if changed:
        lines = [f"  {key}: {changes[key][0]!r} in the run's training, {changes[key][1]!r} now" for key in changed]
        raise RecipeError(
            f"the recipe differs from the one that {run.folder} was trained with:\n"
            + "\n".join(lines)
            + f"\nrestore these values (the run's own recipe: {run.folder / RECIPE}), "
            "or leave --resume out to start a new run"
        )


def only_average_left(run: Run, recipe: Recipe) -> int | None:
    """Return the last step of a finished run whose newest checkpoints were removed, but not the average of them.

    For any other run it is None. Raises RunError if a recipe asks for another training than the finished one.
    """
    folder = run.checkpoints_folder
    averaged = averaged_steps(folder)
    if not averaged or max(whole_steps(folder), default=0) >= averaged[-1]:
        return None
    changes = differences(run.trained_recipe(), recipe.model_dump(mode="json")).keys() - keys_changing(recipe, NOTHING)
    changed = sorted(key for key in changes if not key.startswith("decoding."))
    if changed:
        raise RunError(
            f"{run.folder} cannot be continued with another {', '.join(changed)}: its checkpoint of step "
            f"{averaged[-1]} is incomplete or was removed, and its average has weights only; start a new run from it "
            f"with --init {run.folder}"
        )
    return averaged[-1]


def averaged_steps(folder: Path) -> list[int]:
    """Return the steps that ``average`` was made from, or an empty list if it is missing or damaged."""
    with suppress(RunError):
        verify_checkpoint(folder / AVERAGE, ["model"])
        return list(read_state(folder / AVERAGE)["steps"])
    return []


def read_to_resume(task: "Task", run: Run, name: str = "last") -> Checkpoint | None:
    """Return the checkpoint to resume from, or None before the first checkpoint. Raises RunError.

    ``last`` is the newest complete checkpoint. The pointer may be outdated after a kill.
    """
    task.check_run(run)
    folder = run.checkpoints_folder
    with suppress(OutputError):
        clear(folder / "*")
    steps = saved_steps(folder)
    if name == "last":
        if not steps:
            return None
        complete = [step for step in steps if (folder / step_name(step) / MANIFEST).is_file()]
        if complete:
            name = step_name(complete[-1])
    if not steps and averaged_steps(folder):
        raise RunError(
            f"{run.folder} has only its average left, which has weights only; start a new run from it with "
            f"--init {run.folder}"
        )
    path = run.checkpoint(name)
    if step_of(path.name) is None:
        raise RunError(f"{path} contains weights only; resume from last, best or a step")
    checkpoint = read_checkpoint(path, ["model", MOMENTS])
    run.check_model(path)
    state = TrainingState.from_json(checkpoint.state, path)
    return Checkpoint(checkpoint.tensors, state.model_dump())


def reopen(
    run: Run, recipe: Recipe, environment: Mapping[str, object], state: Mapping[str, Any] | None, *, finished: bool
) -> bool:
    """Prepare the folder of a resumed run. Return whether steps or the average may be computed.

    `state` is the state of the checkpoint from which training continues, or None at step 0. All other checks must have
    passed, and the caller must have claimed the run. Files of killed processes are removed or restored. If steps
    remain, later checkpoints and the average are removed, because training writes them again, and the environment gets
    a record of the resumption. If the run is `finished`, the pointers are repaired. The average may be computed if the
    recipe gives the results of the run's and the checkpoint is the newest. Raises RunError and OutputError.
    """
    record = run.environment()
    if not finished and record.get("teacher_sha256") not in (None, environment.get("teacher_sha256")):
        raise RunError(f"the teacher of {run.folder} has other weights now; train a new student")
    folder = run.checkpoints_folder
    for parent in (run.folder, folder):
        clear(parent / "*")
    step = state["step"] if state else 0
    if finished:
        update_pointers(run, run.recipe.training)
        same_recipe = differences(run.recipe, recipe).keys() <= keys_changing(recipe, NOTHING)
        return same_recipe and saved_steps(folder)[-1:] == [step]
    with writing(folder):
        if (folder / AVERAGE).is_dir():
            discard(folder / AVERAGE, MANIFEST, MODEL)
    if state is not None:
        prune(folder, {saved for saved in saved_steps(folder) if saved <= step})
        run.set_pointer("last", step)
        run.set_pointer("best", state["best_step"] if state["best_step"] in whole_steps(folder) else None)
    resumed = describe_environment(recipe) | dict(environment)
    record["recipe"] = resumed.pop("recipe")
    record.setdefault("resumed", []).append(resumed)
    unmodified = record.get("unmodified")  # the recipe file's values of keys that options changed
    if isinstance(unmodified, dict):
        for key, (before, _) in differences(run.recipe, recipe).items():
            unmodified.setdefault(key, before)
    write_json(run.folder / ENVIRONMENT, record)
    if recipe != run.recipe:  # otherwise the user's comments stay
        write_recipe(run.folder, recipe)
    return True
