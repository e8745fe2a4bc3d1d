"""Checkpoints: tensors in safetensors, the rest in JSON. Nothing is ever unpickled, and a load verifies every byte.

A checkpoint is a folder::

    step-000200/
        model.safetensors       one file a group of tensors
        optimizer.safetensors
        state.json              counters and scores
        manifest.json           size and SHA-256 of the others, written last

It is written beside its place and flushed, then renamed: a crash leaves the old checkpoint or the new one, never a
part of one. One that is replaced steps aside for the moment between two renames; :func:`recover` puts it back if the
writer died there.
"""

import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.errors import OutputError, RunError
from phmctl.files import read_json_object, sha256, sync_file, sync_folder, write_atomic, writing

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

MANIFEST = "manifest.json"
STATE = "state.json"
AVERAGE = "average"  # the folder of the averaged weights
_STEP = re.compile(r"step-(\d{6,})")
_ASIDE = re.compile(r"\.(?P<name>.+)\.(?P<process>\d+)\.old")


@dataclass(frozen=True)
class Checkpoint:
    """What :func:`read_checkpoint` gives: `tensors` by group and name (on the CPU), and the JSON `state`."""

    tensors: dict[str, dict[str, "Tensor"]]
    state: dict[str, Any]


def step_name(step: int) -> str:
    """Return the folder name of the checkpoint after `step` optimiser steps: ``step-000200``."""
    return f"step-{step:06d}"


def step_of(name: str) -> int | None:
    """Return the step of a folder name, or None when it is not that of a step."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def saved_steps(folder: Path) -> list[int]:
    """Return the steps that have a checkpoint in `folder`, ascending."""
    if not folder.is_dir():
        return []
    steps = (step_of(entry.name) for entry in folder.iterdir() if entry.is_dir())
    return sorted(step for step in steps if step is not None)


# ---------------------------------------------------------------------------------------------------- writing


def write_checkpoint(folder: Path, tensors: Mapping[str, Mapping[str, "Tensor"]], state: Mapping[str, Any]) -> None:
    """Write a checkpoint; one that stands there already is replaced.

    Args:
        folder: where it shall lie; its parent is made.
        tensors: group -> name -> tensor, each group one file. No two tensors may share storage.
        state: what JSON can hold; floats keep every bit.

    Raises:
        OutputError: the folder cannot be written (read-only, full).
    """
    temporary = folder.with_name(f".{folder.name}.{os.getpid()}.tmp")
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _clear_leftovers(folder.parent)
        temporary.mkdir()
        try:
            _fill(temporary, tensors, state)
            _move_into_place(temporary, folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
            _put_back(folder.parent)


def _fill(folder: Path, tensors: Mapping[str, Mapping[str, "Tensor"]], state: Mapping[str, Any]) -> None:
    names = [STATE]
    for group, named in tensors.items():
        _save_tensors(folder / f"{group}.safetensors", named)
        names.append(f"{group}.safetensors")
    (folder / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
    for name in names:
        sync_file(folder / name)
    manifest = {name: {"bytes": (folder / name).stat().st_size, "sha256": sha256(folder / name)} for name in names}
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def _save_tensors(path: Path, named: Mapping[str, "Tensor"]) -> None:
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        path.touch()
        mode = path.stat().st_mode  # as the user's files are made; safetensors makes its own for the owner alone
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in named.items()}, path)
        path.chmod(mode)
    except SafetensorError as error:  # its writer reports a full disk so
        raise OutputError(f"cannot write {path}: {error}; choose a folder that is writable and has space") from error


def _move_into_place(temporary: Path, folder: Path) -> None:
    old = folder.with_name(f".{folder.name}.{os.getpid()}.old")
    if folder.exists():
        folder.rename(old)
    temporary.rename(folder)
    sync_folder(folder.parent)
    shutil.rmtree(old, ignore_errors=True)


def _clear_leftovers(parent: Path) -> None:
    """Put back what a killed process had moved aside, and remove what it left half written: nothing refers to it."""
    _put_back(parent)
    for entry in [*parent.glob(".*.tmp"), *parent.glob(".*.old")]:
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)


def recover(folder: Path) -> None:
    """Put back the checkpoints of `folder` that a process had moved aside to replace them, and died.

    Those of a process that lives are left to it. A folder that cannot be written stays as it is.
    """
    with suppress(OSError):
        _put_back(folder, _is_dead)


def _put_back(parent: Path, of_process: Callable[[int], bool] = lambda process: True) -> None:
    for entry in parent.glob(".*.old"):
        match = _ASIDE.fullmatch(entry.name)
        if match and not (parent / match["name"]).exists() and of_process(int(match["process"])):
            entry.rename(parent / match["name"])


def _is_dead(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    except OSError:  # another user's
        return False
    return process == os.getpid()  # this one reads now, so it is not writing: an earlier process had its number


def prune(folder: Path, keep: set[int]) -> None:
    """Remove the step checkpoints of `folder` whose step is not in `keep`; ``average`` is left alone."""
    for step in saved_steps(folder):
        if step not in keep:
            shutil.rmtree(folder / step_name(step), ignore_errors=True)


# ---------------------------------------------------------------------------------------------------- reading


def read_checkpoint(folder: Path, groups: Sequence[str]) -> Checkpoint:
    """Read the state and the named groups of a checkpoint, after checking their sizes and SHA-256.

    Raises:
        RunError: a file is missing, truncated or damaged; the message names it and what to do.
    """
    verify_checkpoint(folder, groups)
    from safetensors.torch import load_file

    tensors = {group: dict(load_file(folder / f"{group}.safetensors")) for group in groups}
    return Checkpoint(tensors, read_json_object(folder / STATE, RunError, _advice(folder)))


def verify_checkpoint(folder: Path, groups: Sequence[str]) -> None:
    """Check the sizes and SHA-256 of what :func:`read_checkpoint` would read; raises as it does."""
    manifest = _read_manifest(folder)
    for name in [STATE, *(f"{group}.safetensors" for group in groups)]:
        _verify(folder / name, manifest)


def _read_manifest(folder: Path) -> dict[str, dict[str, Any]]:
    path = folder / MANIFEST
    if not path.exists():
        raise RunError(f"{folder} is no complete checkpoint: {MANIFEST} is missing; {_advice(folder)}")
    manifest = read_json_object(path, RunError, _advice(folder))
    if not all(isinstance(entry, dict) for entry in manifest.values()):
        raise RunError(f"{path} is damaged; {_advice(folder)}")
    return manifest


def _verify(path: Path, manifest: Mapping[str, Mapping[str, Any]]) -> None:
    expected = manifest.get(path.name)
    if expected is None or not path.is_file():
        raise RunError(f"{path} is missing; {_advice(path.parent)}")
    size = path.stat().st_size
    if size != expected.get("bytes"):
        raise RunError(f"{path} has {size} bytes where {expected.get('bytes')} were written; {_advice(path.parent)}")
    if sha256(path) != expected.get("sha256"):
        raise RunError(f"{path} is damaged: its SHA-256 is not the one written; {_advice(path.parent)}")


def _advice(folder: Path) -> str:
    """Return what to do about a checkpoint that cannot be used."""
    others = [step_name(step) for step in saved_steps(folder.parent)]
    if (folder.parent / AVERAGE).is_dir():
        others.append(AVERAGE)
    others = [name for name in others if name != folder.name]
    if others:
        return f"use another one: --checkpoint {others[-1]} (there are: {', '.join(others)})"
    return "no other checkpoint is there; copy the run again or train it anew"


# ------------------------------------------------------------------------------------------- a model's tensors


def model_tensors(model: "nn.Module") -> dict[str, "Tensor"]:
    """Return a model's parameters and persistent buffers by name; a shared one once, under its first name."""
    unique: dict[int, str] = {}
    tensors = model.state_dict(keep_vars=True)
    for name, tensor in tensors.items():
        unique.setdefault(id(tensor), name)
    return {name: tensors[name].detach() for name in unique.values()}


def load_model(
    model: "nn.Module", tensors: Mapping[str, "Tensor"], where: Path, device: "torch.device | None" = None
) -> None:
    """Copy tensors that :func:`model_tensors` gave into a model of the same shape.

    Args:
        model: built from the same recipe.
        tensors: by name; a shared one once.
        where: the checkpoint's folder, for the message.
        device: for a model that was built on ``meta``, so that nothing was drawn for its start: where it shall lie. The
            tensors become its parameters, if they lie there already.

    Raises:
        RunError: a name or a shape differs from the model's.
    """
    own = model.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(tensor), name) for name, tensor in own.items()}
    _compare({name: own[name] for name in first.values()}, tensors, where)
    if device is not None:
        model.to_empty(device=device)  # what no checkpoint holds, fixed rules and positions, is made anew
        tensors = {name: _parameter(tensor.to(device)) for name, tensor in tensors.items()}
    model.load_state_dict({name: tensors[source] for name, source in names.items()}, assign=device is not None)


def _parameter(tensor: "Tensor") -> "Tensor":
    """Return a parameter: one that two modules share remains one only if they are given the same object."""
    from torch import nn

    return nn.Parameter(tensor)


def _compare(own: Mapping[str, "Tensor"], tensors: Mapping[str, "Tensor"], where: Path) -> None:
    missing, unknown = sorted(own.keys() - tensors.keys()), sorted(tensors.keys() - own.keys())
    if missing or unknown:
        parts = [f"lacks {missing[0]}" if missing else "", f"has an unknown {unknown[0]}" if unknown else ""]
        raise RunError(
            f"{where} does not fit the model of its recipe: it {' and '.join(filter(None, parts))}; "
            "was it written by another version of phmctl?"
        )
    for name, tensor in own.items():
        if tensor.shape != tensors[name].shape:
            raise RunError(
                f"{where} does not fit the model of its recipe: {name} is {tuple(tensors[name].shape)} there, "
                f"{tuple(tensor.shape)} in the model"
            )
