"""Writing that survives a crash: beside the target, flushed to the disk, then renamed over it.

What is being written has a hidden, random name, and its writer holds its lock: process ids say nothing where containers
or hosts share a folder. What nobody holds was left by a process that died.

Prepared data, checkpoints and exports are sealed folders: filled beside their place, flushed,
described by a manifest that is written last (name, bytes and SHA-256 of each file, to notice damage), renamed.
"""

import errno
import fcntl
import glob
import hashlib
import json
import os
import re
import secrets
import shutil
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from phmctl.console import warn
from phmctl.errors import OutputError, UserError, WriteFailedError

_A_DAY = 86_400.0  # seconds
_FAILED = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
# what a file system without flock answers; NFS wants a descriptor that may write, which a folder's is not
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF}
_ASIDE = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.old")
_TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.tmp$")

_ENTRY = {"name": str, "bytes": int, "sha256": str}  # what a manifest says of a file


@contextmanager
def writing(where: Path) -> Iterator[None]:
    """Turn an operating system's refusal to write into an OutputError; of a full or broken disk a WriteFailedError."""
    try:
        yield
    except OSError as error:
        kind = WriteFailedError if error.errno in _FAILED else OutputError
        reason = error.strerror or str(error)
        raise kind(f"cannot write {where}: {reason}; choose a folder that is writable and has space") from error


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock that a file stands for, and yield whether it is held: False only without `wait`.

    The file is made and stays, unless the block fails and nothing else is in its folder: then both go. The end of the
    process gives the lock back. Whoever holds it may remove file and folder: who waits makes them anew. Where the file
    system has no locks (some of Lustre, NFS and FUSE) a warning says so, and the lock counts as held.
    """
    while True:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("a")
        with handle:
            with writing(path):
                held = take_lock(handle.fileno(), wait=wait)
            if held is None:
                warn(f"no locks are to be had in {path.parent}: see to it that no second process writes there")
            if held is False or _is_open_as(handle.fileno(), path):
                try:
                    yield held is not False
                except BaseException:
                    with suppress(OSError):
                        if held is not False and [*path.parent.iterdir()] == [path]:
                            path.unlink()
                            path.parent.rmdir()
                    raise
                return


def take_lock(descriptor: int, *, wait: bool = False, shared: bool = False) -> bool | None:
    """Take the lock of an open file: whether it is held; None where the file system has no locks."""
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        return None
    return True


def is_locked(path: Path) -> bool | None:
    """Whether a process holds the lock of :func:`locked` now; None where the file system has no locks."""
    try:
        with path.open("rb") as handle:
            free = take_lock(handle.fileno(), shared=True)
    except OSError:
        return False
    return None if free is None else not free


def _is_open_as(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def sync(path: Path) -> None:
    """Flush a file, or a folder's entries, so that a rename in it survives a power cut, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    Names of files that are no UTF-8 stand in text as lone surrogates, which are written as escapes, as JSON has them.
    A link is followed; a pipe or a device (``/dev/stdout``) is written to, for a rename would put a file in its place.
    """
    payload = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with writing(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(payload)
            return
        target = path.resolve()
        target.parent.mkdir(parents=True, exist_ok=True)
        sweep(target.parent, target.name)
        with held_beside(target, folder=False) as (temporary, descriptor):
            with open(descriptor, "wb", closefd=False) as handle:  # until the rename: who sweeps sees the lock
                handle.write(payload)
            os.fsync(descriptor)
            temporary.replace(target)
        sync(target.parent)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically, with keys in the order given."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json_object(path: Path, failure: type[UserError], advice: str) -> dict[str, Any]:
    """Return the JSON object that a file holds; `failure`, which ends with the advice, where there is none."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise failure(f"{path} is missing; {advice}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise failure(f"{path} cannot be read ({error}); {advice}") from error
    if not isinstance(value, dict):
        raise failure(f"{path} is damaged: it holds no JSON object; {advice}")
    return value


def refuse_pipes(folder: Path, failure: type[UserError]) -> None:
    """Refuse a folder that holds a pipe, a socket or a device, below it too: a reader would wait for its writer."""
    for parent, _, names in os.walk(folder):
        for path in (Path(parent, name) for name in names):
            if not path.is_file() and path.exists():
                raise failure(f"{path} is no regular file; remove it, or copy the whole folder again")


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{suffix}")


@contextmanager
def held_beside(path: Path, *, folder: bool = True) -> Iterator[tuple[Path, int]]:
    """Yield a new file or folder beside `path` and its descriptor, whose lock is held; it goes unless it is renamed."""
    flags = os.O_RDONLY if folder else os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    while True:
        temporary = _beside(path, "tmp")
        with suppress(FileNotFoundError):  # swept in that moment
            if folder:
                temporary.mkdir()
            descriptor = os.open(temporary, flags, 0o666)
            if take_lock(descriptor) is not False and _is_open_as(descriptor, temporary):
                break
            os.close(descriptor)
    try:
        yield temporary, descriptor
    finally:
        if temporary.is_dir():
            shutil.rmtree(temporary, ignore_errors=True)
        else:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        os.close(descriptor)


@contextmanager
def replacing(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `folder` when the block ends well, and vanishes otherwise.

    What has its name already steps aside, for a moment, and is removed. OutputError: it cannot be made or renamed, and
    what was there stays.
    """
    with ExitStack() as stack:
        with writing(folder):
            folder.parent.mkdir(parents=True, exist_ok=True)
            temporary, _ = stack.enter_context(held_beside(folder))
        yield temporary
        with writing(folder):
            sync(temporary)
            aside = _beside(folder, "old")
            if folder.exists():
                folder.rename(aside)
            try:
                temporary.rename(folder)
            except OSError:
                with suppress(OSError):
                    aside.rename(folder)
                raise
            sync(folder.parent)
            shutil.rmtree(aside, ignore_errors=True)


def clear(path: Path) -> None:
    """Clear what killed processes left of a file or folder, or of all beside it where its name is ``*``.

    What is half made goes, what :func:`replacing` had moved aside comes back. For who alone may write there: nothing
    tells whether such a process lives.
    """
    with writing(path):
        for entry in path.parent.glob(".*.old"):
            match = _ASIDE.fullmatch(entry.name)
            if match is None or path.name not in ("*", match["name"]):
                continue
            place = path.with_name(match["name"])
            if place.exists():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.rename(place)
        sweep(path.parent, path.name)


def discard(folder: Path) -> None:
    """Remove a folder so that a crash leaves no part of it under its name, as :func:`sweep` does later. OSError."""
    temporary = _beside(folder, "tmp")
    folder.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def temporaries(path: Path) -> list[Path]:
    """The temporary files and folders that were to become `path`; all of its folder where its name is ``*``."""
    name = path.name if path.name == "*" else glob.escape(path.name)
    return [entry for entry in path.parent.glob(f".{name}.*.tmp") if _TEMPORARY.search(entry.name)]


def sweep(folder: Path, name: str = "*") -> None:
    """Remove the temporaries in a folder whose writers died: those of the file `name`, or all.

    Where there are no locks, those of the last day are left. What cannot be removed is left too.
    """
    for entry in temporaries(folder / name):
        with suppress(OSError):
            descriptor = os.open(entry, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                held = take_lock(descriptor)
                if held or (held is None and time.time() - os.fstat(descriptor).st_mtime > _A_DAY):
                    shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
            finally:
                os.close(descriptor)


def sha256(path: Path) -> str:
    with path.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").hexdigest()


def sha256_text(parts: Iterable[str]) -> str:
    """The SHA-256 of text in UTF-8, given in parts."""
    return hashlib.sha256("".join(parts).encode("utf-8")).hexdigest()


def file_entry(folder: Path, name: str) -> dict[str, Any]:
    path = folder / name
    return {"name": name, "bytes": path.stat().st_size, "sha256": sha256(path)}


def are_file_entries(value: object) -> bool:
    """Whether a value read from a manifest is a list of what :func:`file_entry` returns."""
    return isinstance(value, list) and all(
        isinstance(entry, dict) and all(isinstance(entry.get(key), kind) for key, kind in _ENTRY.items())
        for entry in value
    )


def seal(folder: Path, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Flush a folder that is otherwise complete to the disk and write its manifest; return it."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in (*files, *{path.parent for path in files}):
        sync(path)
    entries = [file_entry(folder, path.relative_to(folder).as_posix()) for path in files]
    manifest = {**content, "files": entries}
    write_json(folder / name, manifest)
    return manifest


def read_seal(path: Path, failure: type[UserError], advice: str) -> dict[str, Any]:
    """Return a manifest; `failure` where it is missing or lists no files."""
    manifest = read_json_object(path, failure, advice)
    if not are_file_entries(manifest.get("files")):
        raise failure(f"{path} is damaged: it does not list its files; {advice}")
    return manifest


def damage(folder: Path, entry: Mapping[str, Any]) -> str | None:
    """What is wrong with a file, the end of a sentence, if it is not that which the entry describes."""
    path = folder / entry["name"]
    try:
        there = path.is_file()
    except (OSError, ValueError):  # a name that no file can have, as a damaged manifest may
        there = False
    if not there:
        return "is missing"
    whole = path.stat().st_size == entry["bytes"] and sha256(path) == entry["sha256"]
    return None if whole else "is damaged: its SHA-256 is not the one recorded"


def verify(
    folder: Path,
    entries: Iterable[Mapping[str, Any]],
    failure: type[UserError],
    advice: str,
    names: Collection[str] | None = None,
) -> None:
    """Raise `failure` where a file that the entries describe is another now; of these names alone, if given."""
    for entry in entries:
        if (names is None or entry["name"] in names) and (wrong := damage(folder, entry)):
            raise failure(f"{folder / entry['name']} {wrong}; {advice}")
