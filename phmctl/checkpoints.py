"""Checkpoints: tensors in safetensors, counters in JSON. Nothing is ever unpickled, and loading verifies every byte.

A checkpoint is a folder::

    step-000200/
        model.safetensors       one file per group of tensors
        optimizer.safetensors
        state.json              counters and scores
        manifest.json           sizes and SHA-256 of the other files and the recipe's model section, written last

It is written under a temporary name, flushed to the disk and renamed, so that a crash leaves the old checkpoint or the
new one, never a part. A replaced checkpoint has another name for a moment; if the writer dies then, the next writer
restores it.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import warn
from phmctl.errors import OutputError, RunError
from phmctl.files import clear, damage, discard, read_json_object, read_seal, replacing, seal, verify, writing

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

MANIFEST = "manifest.json"
MARK = "model"  # key of the manifest, by which a checkpoint is known
STATE = "state.json"
MOMENTS = "optimizer"  # group of tensors that are only needed for resuming
AVERAGE = "average"  # folder of the averaged weights
_STEP = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint, by group and name, on the CPU; and its JSON state."""

    tensors: dict[str, dict[str, "Tensor"]]
    state: dict[str, Any]


def step_name(step: int) -> str:
    return f"step-{step:06d}"


def folder_name(name: str) -> str:
    """Return the folder name of a checkpoint: ``step-000200`` for ``200``; other names are unchanged."""
    return step_name(int(name)) if name.isdecimal() else name


def step_of(name: str) -> int | None:
    """Return the step in a folder name, or None for other names."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def saved_steps(folder: Path) -> list[int]:
    """Return the steps with a checkpoint in `folder`, in ascending order."""
    if not folder.is_dir():
        return []
    steps = [step_of(path.name) for path in folder.iterdir() if path.is_dir()]
    return sorted(step for step in steps if step is not None)


def whole_steps(folder: Path) -> list[int]:
    """Return the saved steps whose files are all present with their recorded sizes."""
    return [step for step in saved_steps(folder) if is_whole(folder / step_name(step))]


def newest_whole_step(folder: Path) -> int | None:
    """Return the last of :func:`whole_steps`, without looking at the others; None if there is none."""
    return next((step for step in reversed(saved_steps(folder)) if is_whole(folder / step_name(step))), None)


def is_whole(folder: Path, *, hashed: bool = False) -> bool:
    """Return whether all files of a checkpoint are present with their sizes and, if `hashed`, digests."""
    try:
        entries = read_seal(folder / MANIFEST, RunError, "")["files"]
        return not any(damage(folder, entry, hashed=hashed) for entry in entries)
    except (RunError, OSError):
        return False


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Mapping[str, "Tensor"]],
    state: Mapping[str, Any],
    model: Mapping[str, Any] | None = None,
) -> None:
    """Write a checkpoint, replacing one of the same name; `model` is the recipe's model section. Raises OutputError."""
    with writing(folder):
        clear(folder.with_name("*"))
        with replacing(folder, MANIFEST, MARK) as temporary:
            (temporary / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
            for group, named in tensors.items():
                save_tensors(temporary / f"{group}.safetensors", named)
            seal(temporary, MANIFEST, {MARK: dict(model or {})})


def save_tensors(path: Path, tensors: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None) -> None:
    """Write tensors that share no storage as a safetensors file. Raises OSError."""
    from safetensors.torch import save  # save_file gives the file unusual permissions and errors without an errno

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.write_bytes(save(contiguous, metadata))


def prune(folder: Path, keep: set[int]) -> None:
    """Remove the checkpoints of all steps that are not in `keep`, newest first; ``average`` stays.

    A checkpoint into which somebody has put other files stays, with a warning.
    """
    for step in reversed(saved_steps(folder)):
        if step not in keep:
            try:
                discard(folder / step_name(step), MANIFEST, MARK)
            except OutputError as error:
                warn(str(error))
            except OSError:  # the next start tries again
                pass


def read_checkpoint(folder: Path, groups: Sequence[str]) -> Checkpoint:
    """Return the state and the given groups of tensors of a checkpoint. Raises RunError if a file is damaged."""
    verify_checkpoint(folder, groups)
    tensors = {group: read_tensors(folder / f"{group}.safetensors", _Advice(folder)) for group in groups}
    return Checkpoint(tensors, read_state(folder))


def read_tensors(path: Path, advice: object) -> dict[str, "Tensor"]:
    """Return the tensors of a safetensors file by name. Raises RunError, which ends with `advice`, if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}); {advice}") from error


def checkpoint_digest(folder: Path, group: str) -> str:
    """Return the SHA-256 of a group's file that the manifest records. Raises RunError."""
    name = f"{group}.safetensors"
    return next(str(entry["sha256"]) for entry in read_manifest(folder)["files"] if entry["name"] == name)


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state of a checkpoint without verifying it. Raises RunError if it is missing or no JSON object."""
    return read_json_object(folder / STATE, RunError, _Advice(folder))


def verify_checkpoint(folder: Path, groups: Sequence[str]) -> None:
    """Check the sizes and SHA-256 of a checkpoint's state and the given groups. Raises RunError."""
    entries = {entry["name"]: entry for entry in read_manifest(folder)["files"]}
    for name in [STATE, *(f"{group}.safetensors" for group in groups)]:
        if name not in entries:
            raise RunError(f"{folder / name} is missing; {_Advice(folder)}")
        verify(folder, [entries[name]], RunError, _Advice(folder))


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint. Raises RunError if it is missing or damaged."""
    return read_seal(folder / MANIFEST, RunError, _Advice(folder))


@dataclass(frozen=True)
class _Advice:
    """The advice of an error about a checkpoint. Formatting it reads which other checkpoints are undamaged."""

    folder: Path

    def __str__(self) -> str:
        names = [AVERAGE, *map(step_name, saved_steps(self.folder.parent))]  # training continues from a step only
        others = [self.folder.with_name(name) for name in names if name != self.folder.name]
        undamaged = [other.name for other in others if is_whole(other, hashed=True)]
        if not undamaged:
            return "there is no other undamaged checkpoint; copy the run again or train again"
        return f"use another one: --checkpoint {undamaged[-1]} (undamaged: {', '.join(undamaged)})"


def model_tensors(model: "nn.Module") -> dict[str, "Tensor"]:
    """Return a model's parameters and persistent buffers by name; a shared tensor once, under its first name."""
    tensors = model.state_dict(keep_vars=True)
    return {name: tensors[name].detach() for name, first in first_names(tensors).items() if name == first}


def first_names(tensors: Mapping[str, "Tensor"]) -> dict[str, str]:
    """Return the first name of each tensor, by each of its names."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def load_model(model: "nn.Module", tensors: Mapping[str, "Tensor"], path: Path, device: "torch.device") -> None:
    """Load tensors of :func:`model_tensors` into a model, which may be on ``meta``.

    Raises RunError, which names the `path` of the tensors, if a name, shape or type differs.
    """
    import torch
    from torch import nn

    state = model.state_dict(keep_vars=True)
    names = first_names(state)
    check_fit({name: state[name] for name in names.values()}, tensors, path)
    # Names of a shared tensor get the same object, so that it remains one parameter.
    parameters = {name: nn.Parameter(tensors[name].to(device)) for name in names.values()}
    model.load_state_dict({name: parameters[first] for name, first in names.items()}, assign=True)

    # Modules rebuild tensors that checkpoints do not store, such as positions. to_empty() would import torch's compiler
    # for tensors on meta.
    def allocate(tensor: "Tensor") -> "Tensor":
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device) if tensor.is_meta else tensor

    model._apply(allocate)  # type: ignore[no-untyped-call]


def copy_tensors(target: Mapping[str, "Tensor"], source: Mapping[str, "Tensor"], path: Path) -> None:
    """Copy the tensors of a checkpoint into tensors of the same names. Raises RunError if a name or shape differs."""
    check_fit(target, source, path)
    for name, tensor in target.items():
        tensor.copy_(source[name])


def check_fit(model: Mapping[str, "Tensor"], stored: Mapping[str, "Tensor"], path: Path) -> None:
    """Raise RunError with the first three differences if the tensors of a file differ in a name, shape or dtype."""
    described = [(name, _describe(stored[name]), _describe(model[name])) for name in model if name in stored]
    problems = [
        f"{name} is {saved} there, {expected} in the model" for name, saved, expected in described if saved != expected
    ]
    problems += [f"it lacks {name}" for name in sorted(model.keys() - stored.keys())]
    problems += [f"it has an unknown {name}" for name in sorted(stored.keys() - model.keys())]
    if problems:
        raise RunError(
            f"{path} does not fit the model ({len(problems)} differences): {'; '.join(problems[:3])}; is it of another "
            "model or version?"
        )


def _describe(tensor: "Tensor") -> str:
    return f"{tuple(tensor.shape)} of {tensor.dtype}"
