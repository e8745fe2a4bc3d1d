"""Checkpoints: tensors in safetensors, the rest in JSON. Nothing is ever unpickled, and a load verifies every byte.

A checkpoint is a folder::

    step-000200/
        model.safetensors       one file a group of tensors
        optimizer.safetensors
        state.json              counters and scores
        manifest.json           size and SHA-256 of the others, written last

It is written under another name and flushed, then renamed: a crash leaves the old checkpoint or the new one, never a
part of one. A checkpoint that is replaced is renamed for the moment between, and back by the next writer if this one
died there.
"""

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.errors import RunError
from phmctl.files import clear, discard, read_json_object, read_seal, replacing, seal, verify, writing

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

MANIFEST = "manifest.json"
STATE = "state.json"
MOMENTS = "optimizer"  # the group of tensors that only resuming wants
AVERAGE = "average"  # the folder of the averaged weights
_STEP = re.compile(r"step-(\d{6,})")


@dataclass(frozen=True)
class Checkpoint:
    """What :func:`read_checkpoint` gives: `tensors` by group and name (on the CPU), and the JSON `state`."""

    tensors: dict[str, dict[str, "Tensor"]]
    state: dict[str, Any]


def step_name(step: int) -> str:
    return f"step-{step:06d}"


def folder_name(name: str) -> str:
    """The folder that a checkpoint's name means: ``200`` is ``step-000200``."""
    return step_name(int(name)) if name.isdecimal() else name


def step_of(name: str) -> int | None:
    """The step of a folder name; None where it is not that of a step."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def saved_steps(folder: Path) -> list[int]:
    """The steps that have a checkpoint in `folder`, ascending."""
    if not folder.is_dir():
        return []
    steps = (step_of(entry.name) for entry in folder.iterdir() if entry.is_dir())
    return sorted(step for step in steps if step is not None)


def whole_steps(folder: Path) -> list[int]:
    """Those of :func:`saved_steps` whose files are all there, in the sizes that were written."""
    return [step for step in saved_steps(folder) if _is_whole(folder / step_name(step))]


def _is_whole(folder: Path) -> bool:
    try:
        return all((folder / each["name"]).stat().st_size == each["bytes"] for each in _files(folder))
    except (RunError, OSError, ValueError):  # a name that no file can have
        return False


def write_checkpoint(folder: Path, tensors: Mapping[str, Mapping[str, "Tensor"]], state: Mapping[str, Any]) -> None:
    """Write a checkpoint; one that has this name already is replaced."""
    with writing(folder):
        clear(folder.with_name("*"))
        with replacing(folder) as temporary:
            (temporary / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
            for group, named in tensors.items():
                save_tensors(temporary / f"{group}.safetensors", named)
            seal(temporary, MANIFEST, {})


def save_tensors(path: Path, named: Mapping[str, "Tensor"], metadata: dict[str, str] | None = None) -> None:
    """Write tensors, of which no two share storage, as a safetensors file; raises OSError.

    ``safetensors.torch.save_file`` makes a file that its owner alone may read, and its errors name no errno.
    """
    from safetensors.torch import save

    path.write_bytes(save({name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}, metadata))


def prune(folder: Path, keep: set[int]) -> None:
    """Remove the step checkpoints of `folder` whose step is not in `keep`, the newest first; ``average`` stays."""
    for step in reversed(saved_steps(folder)):
        if step not in keep:
            with suppress(OSError):  # the next start tries again
                discard(folder / step_name(step))


def read_checkpoint(folder: Path, groups: Sequence[str]) -> Checkpoint:
    """Read the state and the named groups of a checkpoint, after checking their sizes and SHA-256."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    verify_checkpoint(folder, groups)
    tensors = {}
    for group in groups:
        path = folder / f"{group}.safetensors"
        try:
            tensors[group] = dict(load_file(path))
        except (SafetensorError, OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
            raise RunError(f"{path} cannot be read ({error}); {_advice(folder)}") from error
    return Checkpoint(tensors, read_state(folder))


def checkpoint_digest(folder: Path, group: str) -> str:
    """The SHA-256 of a group's file, as the checkpoint's manifest has it. Raises RunError."""
    return next(str(each["sha256"]) for each in _files(folder) if each["name"] == f"{group}.safetensors")


def read_state(folder: Path) -> dict[str, Any]:
    """A checkpoint's state alone, unverified. Raises RunError where there is none."""
    return read_json_object(folder / STATE, RunError, _advice(folder))


def verify_checkpoint(folder: Path, groups: Sequence[str]) -> None:
    """Check the sizes and SHA-256 of what :func:`read_checkpoint` would read; raises as it does."""
    entries = {each["name"]: each for each in _files(folder)}
    for name in [STATE, *(f"{group}.safetensors" for group in groups)]:
        if name not in entries:
            raise RunError(f"{folder / name} is missing; {_advice(folder)}")
        verify(folder, [entries[name]], RunError, _advice(folder))


def _files(folder: Path) -> list[dict[str, Any]]:
    """What the manifest says of each file; RunError where it is missing or damaged."""
    return list(read_seal(folder / MANIFEST, RunError, _advice(folder))["files"])


def _advice(folder: Path) -> str:
    others = [step_name(step) for step in saved_steps(folder.parent)]
    others += [AVERAGE] if (folder.parent / AVERAGE).is_dir() else []
    others = [name for name in others if name != folder.name]
    if others:
        return f"use another one: --checkpoint {others[-1]} (there are: {', '.join(others)})"
    return "no other checkpoint is there; copy the run again or train it anew"


def model_tensors(model: "nn.Module") -> dict[str, "Tensor"]:
    """A model's parameters and persistent buffers by name; a shared one once, under its first name."""
    tensors = model.state_dict(keep_vars=True)
    return {name: tensors[name].detach() for name, first in _first_names(tensors).items() if name == first}


def _first_names(tensors: Mapping[str, "Tensor"]) -> dict[str, str]:
    first: dict[int, str] = {}
    return {name: first.setdefault(id(tensor), name) for name, tensor in tensors.items()}


def load_model(model: "nn.Module", tensors: Mapping[str, "Tensor"], where: Path, device: "torch.device") -> None:
    """Let tensors of :func:`model_tensors` be a model's parameters, which may be on ``meta``.

    RunError: a name or a shape differs.
    """
    import torch
    from torch import nn

    state = model.state_dict(keep_vars=True)
    names = _first_names(state)
    _check_fit({name: state[name] for name in names.values()}, tensors, where)
    # One object for a tensor that several modules share: it remains one parameter.
    parameters = {name: nn.Parameter(tensors[name].to(device)) for name in names.values()}
    model.load_state_dict({name: parameters[first] for name, first in names.items()}, assign=True)

    # What no checkpoint holds, fixed rules and positions, is made anew by its module. Not by to_empty(), which would
    # import torch's compiler for a tensor on meta.
    def emptied(tensor: "Tensor") -> "Tensor":
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device) if tensor.is_meta else tensor

    model._apply(emptied)  # type: ignore[no-untyped-call]


def copy_tensors(target: Mapping[str, "Tensor"], source: Mapping[str, "Tensor"], where: Path) -> None:
    """Copy a checkpoint's tensors into those of the same names; RunError where a name or a shape differs."""
    _check_fit(target, source, where)
    for name, tensor in target.items():
        tensor.copy_(source[name])


def _check_fit(model: Mapping[str, "Tensor"], tensors: Mapping[str, "Tensor"], where: Path) -> None:
    wrong = [f"it lacks {name}" for name in sorted(model.keys() - tensors.keys())]
    wrong += [f"it has an unknown {name}" for name in sorted(tensors.keys() - model.keys())]
    wrong = wrong or [
        f"{name} is {tuple(tensors[name].shape)} of {tensors[name].dtype} there, "
        f"{tuple(tensor.shape)} of {tensor.dtype} in the model"
        for name, tensor in model.items()
        if (tensor.shape, tensor.dtype) != (tensors[name].shape, tensors[name].dtype)
    ]
    if wrong:
        raise RunError(f"{where} does not fit the model of its recipe: {wrong[0]}; was it written by another version?")
