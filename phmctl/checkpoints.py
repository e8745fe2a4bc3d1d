"""Checkpoints: tensors in safetensors, the rest in JSON. Nothing is ever unpickled, and a load verifies every byte.

A checkpoint is a folder::

    step-000200/
        model.safetensors       one file a group of tensors
        optimizer.safetensors
        state.json              counters and scores
        manifest.json           size and SHA-256 of the others, written last

It is written beside its place and flushed, then renamed: a crash leaves the old checkpoint or the new one, never a
part of one. A checkpoint whose state alone has changed is amended (:func:`amend_state`). One that is replaced steps
aside for the moment between two renames; whoever may write there next puts it back (:func:`tidy`) if the writer died.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.errors import RunError
from phmctl.files import (
    discard,
    move_into_place,
    put_back,
    read_json_object,
    sha256,
    sha256_text,
    sweep,
    sync_file,
    temporary_folder,
    write_atomic,
    writing,
)

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

MANIFEST = "manifest.json"
STATE = "state.json"
MOMENTS = "optimizer"  # the group of tensors that only resuming wants
AVERAGE = "average"  # the folder of the averaged weights
_STEP = re.compile(r"step-(\d{6,})")
_NEXT = "next"  # in the manifest's entry of the state, while that is amended: the entry it will have
# torch's types and the format's, in the order (reversed) in which the format's own library writes their tensors
_TYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "float16": "F16",
    "bfloat16": "BF16",
    "int32": "I32",
    "float32": "F32",
    "complex64": "C64",
    "float64": "F64",
    "int64": "I64",
}
_BUFFER = 1 << 20  # bytes that are written together


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


def whole_steps(folder: Path) -> list[int]:
    """Return those of :func:`saved_steps` whose files are all there, in the sizes that were written."""
    return [step for step in saved_steps(folder) if is_whole(folder / step_name(step))]


def newest_whole(folder: Path) -> Path | None:
    """Return the newest whole checkpoint, looking at no more than it must; None where there is none."""
    newest_first = (folder / step_name(step) for step in reversed(saved_steps(folder)))
    return next((checkpoint for checkpoint in newest_first if is_whole(checkpoint)), None)


def is_whole(folder: Path) -> bool:
    """Return whether a checkpoint has its manifest and all files in their sizes; their bytes are not read."""
    try:
        manifest = _read_manifest(folder)
        return all((folder / name).stat().st_size in _sizes(entry) for name, entry in manifest.items())
    except (RunError, OSError):
        return False


# ---------------------------------------------------------------------------------------------------- writing


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Mapping[str, "Tensor"]],
    state: Mapping[str, Any],
    whole: "Callable[[Tensor], Tensor] | None" = None,
) -> None:
    """Write a checkpoint; one that stands there already is replaced.

    Args:
        folder: where it shall lie; its parent is made.
        tensors: group -> name -> tensor, each group one file. No two tensors may share storage.
        state: what JSON can hold; floats keep every bit.
        whole: see :func:`save_tensors`.

    Raises:
        OutputError: the folder cannot be written (read-only, full).
    """
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        tidy(folder.parent)
        with temporary_folder(folder) as temporary:
            _fill(temporary, tensors, state, whole)
            move_into_place(temporary, folder)


def _fill(
    folder: Path,
    tensors: Mapping[str, Mapping[str, "Tensor"]],
    state: Mapping[str, Any],
    whole: "Callable[[Tensor], Tensor] | None",
) -> None:
    names = [STATE]
    for group, named in tensors.items():
        save_tensors(folder / f"{group}.safetensors", named, whole=whole)
        names.append(f"{group}.safetensors")
    (folder / STATE).write_text(_state_text(state), encoding="utf-8")
    for name in names:
        sync_file(folder / name)
    _write_manifest(folder, {name: _entry(folder / name) for name in names})


def _state_text(state: Mapping[str, Any]) -> str:
    return json.dumps(state, indent=2) + "\n"


def _entry(path: Path) -> dict[str, Any]:
    return {"bytes": path.stat().st_size, "sha256": sha256(path)}


def _write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_atomic(folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")


def save_tensors(
    path: Path,
    named: Mapping[str, "Tensor"],
    metadata: dict[str, str] | None = None,
    whole: "Callable[[Tensor], Tensor] | None" = None,
) -> None:
    """Write tensors as a safetensors file, one after the other: the host holds a copy of one of them at a time.

    The bytes are those that the format's own library writes, which wants all of them at once.

    Args:
        path: the file.
        named: name -> tensor; no two may share storage.
        metadata: what its header says besides.
        whole: puts together a tensor of which this process holds a part; called once for each, in :func:`write_order`.

    Raises:
        OSError: it cannot be written.
    """
    header: dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    end = 0
    for name in write_order(named):
        begin, end = end, end + named[name].numel() * named[name].element_size()
        kind = {"dtype": _TYPES[_type_of(named[name])], "shape": list(named[name].shape)}
        header[name] = {**kind, "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb", buffering=_BUFFER) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in write_order(named):
            file.write(_bytes(named[name] if whole is None else whole(named[name])))


def _bytes(tensor: "Tensor") -> memoryview:
    import torch

    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def write_order(named: Mapping[str, "Tensor"]) -> list[str]:
    """Return the names of tensors as :func:`save_tensors` writes them: wide types first, then by name."""
    ranks = list(_TYPES)
    return sorted(named, key=lambda name: (-ranks.index(_type_of(named[name])), name.encode()))


def _type_of(tensor: "Tensor") -> str:
    return str(tensor.dtype).removeprefix("torch.")


def amend_state(folder: Path, state: Mapping[str, Any]) -> None:
    """Give a whole checkpoint another state; its tensors stay. A crash leaves it whole, with the old state or the new.

    In between the manifest allows both: three small files are written, each at once.

    Raises:
        OutputError: the folder cannot be written.
        RunError: it is no complete checkpoint.
    """
    text = _state_text(state)
    new = {"bytes": len(text.encode()), "sha256": sha256_text([text])}
    manifest = _read_manifest(folder)
    if manifest.get(STATE) == new:
        return
    with writing(folder):
        _write_manifest(folder, manifest | {STATE: {**_entry(folder / STATE), _NEXT: new}})
        write_atomic(folder / STATE, text)
        _write_manifest(folder, manifest | {STATE: new})


def tidy(folder: Path) -> None:
    """Clear what killed processes left among the checkpoints of `folder`; for who alone may write there.

    What was moved aside to be replaced is put back, a state that was being amended becomes the only one, and what was
    half written or half removed goes: nothing refers to it. So do moments that the manifest names no more.

    Raises:
        OSError: the folder cannot be written.
    """
    put_back(folder)
    sweep(folder)
    for checkpoint in (folder / step_name(step) for step in saved_steps(folder)):
        sweep(checkpoint)
        if is_whole(checkpoint):
            manifest = _read_manifest(checkpoint)
            if _NEXT in manifest.get(STATE, {}):
                _write_manifest(checkpoint, manifest | {STATE: _entry(checkpoint / STATE)})
            if f"{MOMENTS}.safetensors" not in manifest:
                (checkpoint / f"{MOMENTS}.safetensors").unlink(missing_ok=True)


def drop_group(folder: Path, group: str) -> None:
    """Make a whole checkpoint one without a group of its tensors, if it is there. A crash leaves it whole.

    Raises:
        OSError: the folder cannot be written.
    """
    name = f"{group}.safetensors"
    with suppress(RunError):  # pruned
        manifest = _read_manifest(folder)
        if name in manifest:
            _write_manifest(folder, {other: entry for other, entry in manifest.items() if other != name})
            (folder / name).unlink(missing_ok=True)


def has_group(folder: Path, group: str) -> bool:
    """Return whether a checkpoint holds a group of tensors, by its manifest. Raises RunError if that is damaged."""
    return f"{group}.safetensors" in _read_manifest(folder)


def prune(folder: Path, keep: set[int]) -> None:
    """Remove the step checkpoints of `folder` whose step is not in `keep`; ``average`` is left alone."""
    for step in saved_steps(folder):
        if step not in keep:
            with suppress(OSError):  # the next start tries again
                discard(folder / step_name(step))


# ---------------------------------------------------------------------------------------------------- reading


def read_checkpoint(folder: Path, groups: Sequence[str]) -> Checkpoint:
    """Read the state and the named groups of a checkpoint, after checking their sizes and SHA-256.

    Raises:
        RunError: a file is missing, truncated or damaged; the message names it and what to do.
    """
    verify_checkpoint(folder, groups)
    tensors = {group: _load_tensors(folder / f"{group}.safetensors") for group in groups}
    return Checkpoint(tensors, read_state(folder))


def checkpoint_digest(folder: Path, group: str) -> str:
    """Return the SHA-256 of a group's file, as the checkpoint's manifest has it.

    Raises:
        RunError: the manifest is missing or damaged.
    """
    return str(_read_manifest(folder)[f"{group}.safetensors"]["sha256"])


def read_state(folder: Path) -> dict[str, Any]:
    """Return a checkpoint's state alone, unverified. Raises RunError where there is none."""
    return read_json_object(folder / STATE, RunError, _advice(folder))


def _load_tensors(path: Path) -> dict[str, "Tensor"]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}); {_advice(path.parent)}") from error


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
    if size not in _sizes(expected):
        raise RunError(f"{path} has {size} bytes where {expected.get('bytes')} were written; {_advice(path.parent)}")
    if sha256(path) not in [entry.get("sha256") for entry in _entries(expected)]:
        raise RunError(f"{path} is damaged: its SHA-256 is not the one written; {_advice(path.parent)}")


def _entries(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the entries that a file may have: one, and the next while it is amended."""
    following = entry.get(_NEXT)
    return [entry, following] if isinstance(following, dict) else [entry]


def _sizes(entry: Mapping[str, Any]) -> list[Any]:
    return [each.get("bytes") for each in _entries(entry)]


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
        RunError: a name, a shape or a type differs from the model's.
    """
    own = model.state_dict(keep_vars=True)
    first: dict[int, str] = {}
    names = {name: first.setdefault(id(tensor), name) for name, tensor in own.items()}
    _compare({name: own[name] for name in first.values()}, tensors, where)
    if device is None:
        model.load_state_dict({name: tensors[source] for name, source in names.items()})
    else:
        _give(model, {name: tensors[source] for name, source in names.items()}, device)


def _give(model: "nn.Module", tensors: Mapping[str, "Tensor"], device: "torch.device") -> None:
    """Make tensors the parameters of a model on ``meta``."""
    import torch
    from torch import nn

    # One object for a tensor that several modules share: it remains one parameter.
    parameters = {id(tensor): nn.Parameter(tensor.to(device)) for tensor in tensors.values()}
    model.load_state_dict({name: parameters[id(tensor)] for name, tensor in tensors.items()}, assign=True)

    # What no checkpoint holds, fixed rules and positions, is made anew by its module. Not by to_empty(), which would
    # import torch's compiler for a tensor on meta.
    def placed(tensor: "Tensor") -> "Tensor":
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device) if tensor.is_meta else tensor

    model._apply(placed)  # type: ignore[no-untyped-call]


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
        if tensor.dtype != tensors[name].dtype:
            raise RunError(f"{where} is damaged: {name} is {tensors[name].dtype}, not {tensor.dtype}; {_advice(where)}")
