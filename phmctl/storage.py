"""Files and folders that a crash leaves old or new, never in part, and checkpoints: such folders of tensors.

A file or folder is written under a hidden temporary name, flushed to the disk and renamed. What a killed process leaves
under hidden names, :func:`clear` removes, which the next holder of the lock calls.

Prepared data, checkpoints and exports are sealed folders: a manifest, written last, lists the name, size and SHA-256 of
every file, so that a reader detects damage, and nobody replaces or removes a file that phmctl did not write.

A checkpoint is a sealed folder ``step-000200`` or ``average``: ``state.json`` has counters and scores, each group of
tensors is a safetensors file, and the manifest has the recipe's model section. Nothing is ever unpickled.
"""

import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import warn
from phmctl.errors import OutputError, RunError, UserError, WriteFailedError

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = 1  # format number of recipes, prepared data, checkpoints, results and exports (readers refuse other numbers)
QUANTIZATIONS = ("float32", "float16", "int8", "int4")  # the types in which a file stores weights
MANIFEST = "manifest.json"
STATE = "state.json"
MODEL = "model"  # group of a checkpoint's weights, and key of the manifest
MOMENTS = "optimizer"  # group of tensors that are only needed for resuming
AVERAGE = "average"  # folder of the averaged weights

_DISK_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
# Errors of file systems without flock. NFS reports EBADF.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF}
_HIDDEN = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.(?P<kind>tmp|old)")  # see _hidden_name
_BUSY_SECONDS = 0.5  # `phmctl runs` holds the lock of each run for a moment
_STEP = re.compile(r"step-(\d{6,})")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into an OutputError that names the path, or a WriteFailedError if the disk is full or broken."""
    try:
        yield
    except OSError as error:
        error_type = WriteFailedError if error.errno in _DISK_FAILURES else OutputError
        reason = error.strerror or str(error)
        raise error_type(f"cannot write {path}: {reason} (choose a folder that is writable and has space)") from error


@contextmanager
def lock(path: Path, *, busy: UserError | None = None, remove: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created if it is missing and stays afterwards unless `remove` is set.

    The lock ends with the process. If another process holds it, this one waits. After half a second it raises `busy`,
    if that is given. On a file system without locks (some of Lustre, NFS and FUSE) a warning is printed and the block
    runs unlocked.
    """
    from filelock import FileLock, Timeout  # imports asyncio, which takes longer than most commands

    timeout = -1 if busy is None else _BUSY_SECONDS
    file_lock = FileLock(path, timeout=timeout, poll_interval=0.02, fallback_to_soft=False)
    with writing(path):
        try:
            while not file_lock.is_locked:
                path.parent.mkdir(parents=True, exist_ok=True)
                # filelock retries forever where no file can be created, as in /proc
                tempfile.TemporaryFile(dir=path.parent).close()
                with suppress(FileNotFoundError):  # the last holder removed the folder that it had created
                    file_lock.acquire()
        except Timeout as error:
            raise busy or error from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            warn(f"the file system of {path.parent} has no locks: make sure that no second process writes there")
    try:
        yield
    finally:
        if remove:  # a process that waits for this file sees that it is removed, and creates it again
            with suppress(OSError):
                path.unlink()
        file_lock.release()


def is_locked(path: Path) -> bool:
    """Return whether a process holds :func:`lock` on a file. It is False on a file system without locks.

    A shared lock, so that processes that look at the same time do not see each other.
    """
    with suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


# -------------------------------------------------------------------------------------------------------- files


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader sees the old content or the new content, never a part.

    Lone surrogates, which come from file names that are not UTF-8, are written as escapes, as in JSON. The file
    replaces a link of the same name, so that a link in a copied run leads to no other file.
    """
    payload = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with writing(path):
        if path.is_dir() and not path.is_symlink():
            raise OutputError(f"{path} is a folder: name a file in it")
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = _hidden_name(path, "tmp")
        try:
            with temporary.open("xb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        sync(path.parent)


def write_json(path: Path, value: object) -> None:
    """Write a value as indented JSON, atomically. Keys keep their order."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json_object(path: Path, error_type: type[UserError], advice: object) -> dict[str, Any]:
    """Return the JSON object in a file. Otherwise raise `error_type` with a message that ends with `advice`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise error_type(f"{path} is missing: {advice}") from error
    except (OSError, ValueError) as error:
        raise error_type(f"{path} cannot be read ({error}): {advice}") from error
    if not isinstance(value, dict):
        raise error_type(f"{path} holds no JSON object: {advice}")
    return value


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_text(parts: Iterable[str]) -> str:
    """Return the SHA-256 of the concatenated parts in UTF-8."""
    return hashlib.sha256("".join(parts).encode("utf-8")).hexdigest()


# -------------------------------------------------------------------------------------- folders that are replaced


def _hidden_name(path: Path, kind: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{kind}")


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new hidden folder next to `path`. It is removed at the end unless the block renames it."""
    temporary = _hidden_name(path, "tmp")
    with writing(path):
        temporary.mkdir()
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


@contextmanager
def replacing(folder: Path, manifest: str, mark: str, *, also: str = "") -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` if the block succeeds and is removed otherwise.

    An existing folder is renamed for a moment and then removed. If the new folder cannot be created or renamed, the old
    one stays and OutputError is raised, as :func:`check_own` does.
    """
    check_own(folder, manifest, mark, also=also)
    with temporary_folder(folder) as temporary:
        yield temporary
        check_own(folder, manifest, mark, also=also)  # another process may have filled it
        with writing(folder):
            sync(temporary)
            replaced = _hidden_name(folder, "old")
            if folder.exists():
                folder.rename(replaced)
            try:
                temporary.rename(folder)
            except OSError:
                with suppress(OSError):
                    replaced.rename(folder)
                raise
            sync(folder.parent)
            shutil.rmtree(replaced, ignore_errors=True)


def discard(folder: Path, manifest: str, mark: str) -> None:
    """Remove a folder. A crash never leaves a part of it under the name. Raises OSError, and as :func:`check_own`."""
    check_own(folder, manifest, mark)
    temporary = _hidden_name(folder, "tmp")
    folder.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def check_own(folder: Path, manifest: str, mark: str, *, also: str = "") -> None:
    """Raise OutputError, which names the files, if replacing a folder would remove anything that phmctl did not write.

    A folder may be missing or empty. Otherwise the manifest, which must have the key `mark`, must list the
    files, or the names must fit the pattern `also`. A link is never followed.
    """
    with writing(folder):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise OutputError(f"{folder} is a file or a link, and is not replaced: move it away, or name another place")
        if folder.exists() and (folder.is_mount() or folder.samefile(".")):
            raise OutputError(f"{folder} is the working folder or a disk, and is not replaced: name a folder in it")
        own = own_files(folder / manifest, mark)
        files = [path for path in sorted(folder.rglob("*")) if path.is_symlink() or not path.is_dir()]
    names = [path.relative_to(folder).as_posix() for path in files]
    foreign = [name for name in names if name not in own and not (own and re.fullmatch(also, name))]
    if foreign:
        shown = ", ".join(foreign[:10]) + (f" and {len(foreign) - 10} more" if len(foreign) > 10 else "")
        raise OutputError(
            f"{folder} is not replaced, because phmctl did not write {shown} in it: move them away, or name another "
            "place"
        )


def own_files(path: Path, mark: str) -> set[str]:
    """Return the names of a manifest and the files in it, or an empty set unless the manifest has the key `mark`."""
    try:
        manifest = read_seal(path, OutputError, "")
    except OutputError:
        return set()
    return {path.name, *(entry["name"] for entry in manifest["files"])} if mark in manifest else set()


def leftovers(path: Path) -> list[Path]:
    """Return the hidden names that killed writers of `path` left. A path named ``*`` is everything in the folder."""
    hidden = ((entry, _HIDDEN.fullmatch(entry.name)) for entry in path.parent.glob(".*"))
    return [entry for entry, match in hidden if match is not None and path.name in ("*", match["name"])]


def clear(path: Path) -> None:
    """Remove the :func:`leftovers` of `path`. A folder that was moved aside gets the name back if nothing has it.

    The caller must be the only writer, since living processes write under hidden names too.
    """
    with writing(path):
        for hidden in leftovers(path):
            folder = path.with_name(hidden.name[1:-13])  # without the dot and .0123abcd.old
            if hidden.suffix == ".old" and not folder.exists():
                hidden.rename(folder)
            elif hidden.is_dir() and not hidden.is_symlink():
                shutil.rmtree(hidden, ignore_errors=True)
            else:
                hidden.unlink(missing_ok=True)


@contextmanager
def sole_writer(path: Path) -> Iterator[None]:
    """Hold the lock of a file or folder, ``*`` for all in a folder, and :func:`clear` it. Raises OutputError."""
    created = [folder for folder in path.parents if not folder.exists()]  # removed at the end if they are empty
    try:
        with lock(path.parent / (".lock" if path.name == "*" else f".{path.name}.lock"), remove=True):
            clear(path)
            yield
    finally:
        with suppress(OSError):
            for folder in created:
                folder.rmdir()


def file_entry(folder: Path, name: str) -> dict[str, Any]:
    """Return the manifest entry of a file."""
    path = folder / name
    return {"name": name, "bytes": path.stat().st_size, "sha256": sha256(path)}


def seal(folder: Path, name: str, content: Mapping[str, object]) -> dict[str, object]:
    """Flush a complete folder to the disk, write the manifest and return it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in (*files, *{path.parent for path in files}):
        sync(path)
    entries = [file_entry(folder, path.relative_to(folder).as_posix()) for path in files]
    manifest = {**content, "files": entries}
    write_json(folder / name, manifest)
    return manifest


def read_seal(path: Path, error_type: type[UserError], advice: object) -> dict[str, Any]:
    """Return a manifest. Raise `error_type` if it is missing or lists no files."""
    manifest = read_json_object(path, error_type, advice)
    if "files" not in manifest:
        raise error_type(f"{path} lists no files: {advice}")
    return manifest


def damage(folder: Path, entry: Mapping[str, Any], *, hashed: bool = True) -> str | None:
    """Return "is missing" or "is damaged: …" if a file's size or, if `hashed`, digest is not the entry's, or None."""
    path = folder / entry["name"]
    if not path.is_file():
        return "is missing"
    if path.stat().st_size != entry["bytes"] or (hashed and sha256(path) != entry["sha256"]):
        if path.suffix == ".json" and sha256_text([path.read_text("utf-8", errors="replace")]) == entry["sha256"]:
            return "has the line ends of Windows: git's core.autocrlf must be off when it is checked out"
        return "is damaged: the SHA-256 is not the one recorded"
    return None


def verify(
    folder: Path,
    entries: Sequence[Mapping[str, Any]],
    error_type: type[UserError],
    advice: object,
    names: Collection[str] | None = None,
) -> None:
    """Raise `error_type` if a file differs from the manifest's entry.

    `names` restricts the check to these files. One that exists without an entry is an error: it is not verified.
    """
    for name in {*(names or ())}.difference(entry["name"] for entry in entries):
        if (folder / name).exists():
            raise error_type(f"{folder / name} cannot be verified, because the manifest does not list it: {advice}")
    for entry in entries:
        problem = damage(folder, entry) if names is None or entry["name"] in names else None
        if problem is not None:
            raise error_type(f"{folder / entry['name']} {problem}: {advice}")


# ---------------------------------------------------------------------------------------------------- checkpoints


@dataclass(frozen=True)
class Checkpoint:
    """The tensors of a checkpoint, by group and name, on the CPU, and the JSON state."""

    tensors: dict[str, dict[str, "Tensor"]]
    state: dict[str, Any]


def step_name(step: int) -> str:
    return f"step-{step:06d}"


def folder_name(name: str) -> str:
    """Return the folder name of a checkpoint: ``step-000200`` for ``200``. Other names are unchanged."""
    return step_name(int(name)) if name.isdecimal() else name


def step_of(name: str) -> int | None:
    """Return the step in a folder name, or None for other names."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def saved_steps(folder: Path) -> list[int]:
    """Return the steps with a checkpoint in `folder`, in ascending order."""
    steps = [step_of(path.name) for path in folder.glob("step-*") if path.is_dir()]
    return sorted(step for step in steps if step is not None)


def whole_steps(folder: Path) -> list[int]:
    """Return the saved steps whose files are all present with the recorded sizes."""
    return [step for step in saved_steps(folder) if is_whole(folder / step_name(step))]


def is_whole(folder: Path, *, hashed: bool = False) -> bool:
    """Return whether all files of a checkpoint are present with the right sizes and, if `hashed`, digests."""
    try:
        entries = read_seal(folder / MANIFEST, RunError, "")["files"]
        return not any(damage(folder, entry, hashed=hashed) for entry in entries)
    except (RunError, OSError):
        return False


def write_checkpoint(
    folder: Path,
    tensors: Mapping[str, Mapping[str, "Tensor"]],
    state: Mapping[str, object],
    model: Mapping[str, object] | None = None,
) -> None:
    """Write a checkpoint, replacing one of the same name. `model` is the recipe's model section. Raises OutputError."""
    with writing(folder):
        clear(folder.with_name("*"))
        with replacing(folder, MANIFEST, MODEL) as temporary:
            (temporary / STATE).write_text(json.dumps(state, indent=2) + "\n", encoding="utf-8")
            for group, named in tensors.items():
                save_tensors(temporary / f"{group}.safetensors", named)
            seal(temporary, MANIFEST, {MODEL: dict(model or {})})


def save_tensors(path: Path, tensors: Mapping[str, "Tensor"]) -> None:
    """Write tensors that share no storage as a safetensors file. Raises OSError."""
    from safetensors.torch import save  # save_file gives the file unusual permissions and errors without an errno

    contiguous = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    path.write_bytes(save(contiguous))


def prune(folder: Path, keep: set[int]) -> None:
    """Remove the checkpoints of all steps that are not in `keep`, newest first. ``average`` stays.

    A checkpoint into which somebody has put other files stays, with a warning.
    """
    for step in reversed(saved_steps(folder)):
        if step not in keep:
            try:
                discard(folder / step_name(step), MANIFEST, MODEL)
            except OutputError as error:
                warn(str(error))
            except OSError:  # the next start tries again
                pass


def read_checkpoint(folder: Path, groups: Sequence[str]) -> Checkpoint:
    """Return the state and the given groups of tensors of a checkpoint. Raises RunError if a file is damaged."""
    verify_checkpoint(folder, groups)
    advice = _Advice(folder, resuming=MOMENTS in groups)
    tensors = {group: read_tensors(folder / f"{group}.safetensors", advice) for group in groups}
    return Checkpoint(tensors, read_state(folder))


def read_tensors(path: Path, advice: object) -> dict[str, "Tensor"]:
    """Return the tensors of a safetensors file by name. Raises RunError, which ends with `advice`, if it is damaged."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError, KeyError, RuntimeError, TypeError) as error:
        raise RunError(f"{path} cannot be read ({error}): {advice}") from error


def read_state(folder: Path) -> dict[str, Any]:
    """Return the state of a checkpoint without verifying it. Raises RunError if it is missing or no JSON object."""
    return read_json_object(folder / STATE, RunError, _Advice(folder))


def verify_checkpoint(folder: Path, groups: Sequence[str]) -> None:
    """Check the sizes and SHA-256 of a checkpoint's state and the given groups. Raises RunError."""
    advice = _Advice(folder, resuming=MOMENTS in groups)
    entries = {entry["name"]: entry for entry in read_seal(folder / MANIFEST, RunError, advice)["files"]}
    for name in [STATE, *(f"{group}.safetensors" for group in groups)]:
        if name not in entries:
            raise RunError(f"{folder / name} is missing: {advice}")
        verify(folder, [entries[name]], RunError, advice)


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a checkpoint. Raises RunError if it is missing or damaged."""
    return read_seal(folder / MANIFEST, RunError, _Advice(folder))


@dataclass(frozen=True)
class _Advice:
    """The advice of an error about a checkpoint. Formatting it reads which other checkpoints are undamaged."""

    folder: Path
    resuming: bool = False  # training continues from a step, as the average has weights only

    def __str__(self) -> str:
        names = [*([] if self.resuming else [AVERAGE]), *map(step_name, saved_steps(self.folder.parent))]
        others = [self.folder.with_name(name) for name in names if name != self.folder.name]
        undamaged = [other.name for other in others if is_whole(other, hashed=True)]
        if not undamaged:
            start = " from the weights with init" if self.resuming else ""
            return f"there is no other undamaged checkpoint: copy the run again or train again{start}"
        return f"use another one: checkpoint {undamaged[-1]} (undamaged: {', '.join(undamaged)})"
