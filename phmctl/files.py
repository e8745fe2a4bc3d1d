"""Write files so that a crash leaves the old content or the new one, never a part of it.

A file or folder is written under a hidden temporary name, flushed to the disk and renamed. A killed process may leave
its temporary behind; the next writer of the same name removes temporaries that are more than a day old.

Prepared data, checkpoints and exports are sealed folders: a manifest, written last, lists the name, size and SHA-256 of
every file, so that a reader can detect damage. The records of a run are sealed texts, which end with their own SHA-256.
"""

import errno
import fcntl
import glob
import hashlib
import json
import math
import os
import re
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast

from phmctl.console import warn
from phmctl.errors import OutputError, UserError, WriteFailedError

FORMAT = 1  # format number of recipes, prepared data, checkpoints, results and exports; readers refuse other numbers
QUANTIZATIONS = ("float32", "float16", "int8", "int4")  # the types in which a file stores weights

_ABANDONED_AFTER = 86_400.0  # seconds without a change after which a temporary's writer is considered dead
_DISK_FAILURES = {errno.ENOSPC, errno.EDQUOT, errno.EIO}
# Errors of file systems without flock. NFS reports EBADF.
_NO_LOCKS = {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOTSUP, errno.EBADF}
# Hidden names, see _hidden_name
_REPLACED = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.old")
_TEMPORARY = re.compile(r"\.[0-9a-f]{8}\.tmp$")
_BUSY_SECONDS = 0.5  # `phmctl runs` holds the lock of each run for a moment
_SEAL = b'"sha256": "'  # precedes the digest of a sealed text
_FILE_ENTRY = {"name": str, "bytes": int, "sha256": str}


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an OSError into an OutputError that names the path, or a WriteFailedError if the disk is full or broken."""
    try:
        yield
    except OSError as error:
        error_type = WriteFailedError if error.errno in _DISK_FAILURES else OutputError
        reason = error.strerror or str(error)
        raise error_type(f"cannot write {path}: {reason}; choose a folder that is writable and has space") from error


@contextmanager
def lock(path: Path, *, busy: UserError | None = None, remove: bool = False) -> Iterator[None]:
    """Hold an exclusive lock on a file, which is created if it is missing and stays afterwards unless `remove` is set.

    The lock ends with the process. If another process holds it, this one waits; after half a second it raises `busy`,
    if that is given. On a file system without locks (some of Lustre, NFS and FUSE) a warning is printed and the block
    runs unlocked.
    """
    from filelock import FileLock, Timeout  # imports asyncio, which takes longer than most commands

    timeout = -1 if busy is None else _BUSY_SECONDS
    file_lock = FileLock(path, timeout=timeout, poll_interval=0.02, fallback_to_soft=False)
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
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


@contextmanager
def held(folder: Path) -> Iterator[Callable[[], Path | None]]:
    """Hold a folder open; yield a function that returns its present path, or None without one.

    The path is `folder` while that is still the same folder. Linux knows the new path of a moved folder.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)

    def find() -> Path | None:
        paths = [folder]
        with suppress(OSError):
            paths.append(Path(f"/proc/self/fd/{descriptor}").readlink())
        for path in paths:
            with suppress(OSError):
                if os.path.samestat(path.stat(), os.fstat(descriptor)):
                    return path
        return None

    try:
        yield find
    finally:
        os.close(descriptor)


def is_locked(path: Path) -> bool | None:
    """Return whether a process holds :func:`lock` on a file, or None if that cannot be determined."""
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)  # as filelock does, whose import takes longer
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


def sync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_atomic(path: Path, content: bytes | str, *, follow: bool = False) -> None:
    """Write a file so that a reader sees the old content or the new content, never a part.

    Lone surrogates, which come from file names that are not UTF-8, are written as escapes, as in JSON. The file
    replaces a link of its name, so that a link in a copied run leads to no other file. With `follow`, for a path that
    the user names, a link is followed, and a pipe or a device (``/dev/stdout``) is written directly.
    """
    payload = content.encode("utf-8", "backslashreplace") if isinstance(content, str) else content
    with writing(path):
        if follow and path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(payload)
            return
        target = path.resolve() if follow else path
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target)
        temporary = _hidden_name(target, "tmp")
        try:
            with temporary.open("xb") as file:
                file.write(payload)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(target)
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        sync(target.parent)


def open_without_links(path: Path, mode: str, buffering: int = -1) -> BinaryIO:
    """Open a file for writing bytes; raise OSError if its name is a link, which may lead anywhere."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | {"a": os.O_APPEND, "w": os.O_TRUNC}[mode]
    return cast("BinaryIO", os.fdopen(os.open(path, flags, 0o666), f"{mode}b", buffering))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically; keys keep their order."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def sealed(text: str) -> bytes:
    """Return a text that ends with ``"sha256": ""`` in UTF-8, with the SHA-256 of the bytes before it filled in."""
    content, key, end = text.encode("utf-8", "backslashreplace").rpartition(_SEAL)
    return b"".join((content, key, hashlib.sha256(content).hexdigest().encode(), end))


def is_sealed(text: bytes) -> bool:
    """Return whether a text of :func:`sealed` is complete and unchanged."""
    content, _, end = text.rpartition(_SEAL)
    closing = b"".join(end[64:].split())
    return end[:64] == hashlib.sha256(content).hexdigest().encode() and closing in (b'"', b'"}')


def write_sealed(path: Path, content: Mapping[str, Any]) -> None:
    """Write an object as indented JSON whose last key is its own SHA-256, atomically."""
    write_atomic(path, sealed(json.dumps({**content, "sha256": ""}, indent=2, ensure_ascii=False) + "\n"))


def read_sealed(path: Path, error_type: type[UserError], advice: object) -> dict[str, Any]:
    """Return the content of :func:`write_sealed`; raise `error_type` if the file is missing, damaged or changed."""
    value = read_json_object(path, error_type, advice)
    if not is_sealed(path.read_bytes()):
        raise error_type(f"{path} was changed: its SHA-256 is not the one at its end; {advice}")
    del value["sha256"]
    return value


def read_json_object(path: Path, error_type: type[UserError], advice: object) -> dict[str, Any]:
    """Return the JSON object in a file; otherwise raise `error_type` with a message that ends with `advice`."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique_keys)
    except FileNotFoundError as error:
        raise error_type(f"{path} is missing; {advice}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise error_type(f"{path} cannot be read ({error}); {advice}") from error
    if not isinstance(value, dict):
        raise error_type(f"{path} is damaged: it holds no JSON object; {advice}")
    return value


def unique_keys(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object that ``json.loads`` has read; raise ValueError if it has a key twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        repeated = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {json.dumps(repeated)} is given twice")
    return value


def refuse_pipes(folder: Path, error_type: type[UserError]) -> None:
    """Raise `error_type` if a folder contains a pipe, socket or device: reading it would block."""
    for parent, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(parent, name)  # noqa: PTH118 (of every file of a thousand runs)
            with suppress(FileNotFoundError):
                if not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116
                    raise error_type(f"{path} is not a regular file; remove it, or copy the whole folder again")


def _hidden_name(path: Path, suffix: str) -> Path:
    return path.with_name(f".{path.name}.{secrets.token_hex(4)}.{suffix}")


@contextmanager
def temporary_folder(path: Path) -> Iterator[Path]:
    """Yield a new hidden folder next to `path`; it is removed at the end unless the block renames it."""
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
    with writing(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(folder)
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


def check_own(folder: Path, manifest: str, mark: str, *, also: str = "") -> None:
    """Raise OutputError, which names the files, if replacing a folder would remove anything that phmctl did not write.

    A folder may be missing or empty. Otherwise its files must be listed in its manifest, which must have the key
    `mark`, or their names must fit the pattern `also`. A link is never followed.
    """
    with writing(folder):
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise OutputError(f"{folder} is a file or a link, and is not replaced; move it away, or name another place")
        own = own_files(folder / manifest, mark)
        foreign = []
        for parent, folders, files in os.walk(folder):
            links = [name for name in folders if Path(parent, name).is_symlink()]
            names = [Path(parent, name).relative_to(folder).as_posix() for name in (*files, *links)]
            foreign += [name for name in names if name not in own and not (own and re.fullmatch(also, name))]
    if foreign:
        names = sorted(foreign)[:10] + ([f"{len(foreign) - 10} more"] if len(foreign) > 10 else [])
        raise OutputError(
            f"{folder} is not replaced, because phmctl did not write {', '.join(names)} in it; move them away, or name "
            "another place"
        )


def own_files(path: Path, mark: str) -> set[str]:
    """Return the names of a manifest and of its files, or an empty set unless it is a manifest with the key `mark`."""
    try:
        manifest = read_seal(path, OutputError, "")
    except OutputError:
        return set()
    return {path.name, *(entry["name"] for entry in manifest["files"])} if mark in manifest else set()


def fill(folder: Path, manifest: str, mark: str, complete: Path) -> None:
    """Move the files of a `complete` folder into another one, the manifest last. Files of others there stay.

    Files that the manifest there lists are replaced or, if there is no new one, removed. Raises OutputError, before
    anything is changed, if a file of another origin has the name of a new one.
    """
    before = own_files(folder / manifest, mark)
    names = sorted(path.relative_to(complete).as_posix() for path in complete.rglob("*") if path.is_file())
    if foreign := [name for name in names if name not in before and os.path.lexists(folder / name)]:
        raise OutputError(
            f"{folder} has {', '.join(foreign)}, which phmctl did not write; move them away, or name another folder"
        )
    with writing(folder):
        for name in before.difference(names):
            (folder / name).unlink(missing_ok=True)
        for name in sorted(names, key=lambda name: name == manifest):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (complete / name).replace(folder / name)
        sync(folder)


def clear(path: Path) -> None:
    """Repair a file or folder after a killed process; a path named ``*`` means everything in its folder.

    Temporaries are removed, and :func:`restore_replaced` is called. The caller must be the only writer, because the
    temporaries of living processes are removed too.
    """
    with writing(path):
        restore_replaced(path)
        remove_abandoned(path, after=-math.inf)


def restore_replaced(path: Path) -> None:
    """Rename back each folder that a killed :func:`replacing` had moved away, or remove it if a new folder exists."""
    for replaced in path.parent.glob(".*.old"):
        match = _REPLACED.fullmatch(replaced.name)
        if match is None or path.name not in ("*", match["name"]):
            continue
        folder = path.with_name(match["name"])
        if folder.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(folder)


def remove_abandoned(path: Path, after: float = _ABANDONED_AFTER) -> None:
    """Remove the :func:`temporaries` of `path` that have not changed for `after` seconds."""
    for temporary in temporaries(path):
        with suppress(OSError):
            if time.time() - temporary.stat().st_mtime < after:
                continue
            if temporary.is_dir():
                shutil.rmtree(temporary, ignore_errors=True)
            else:
                temporary.unlink()


def temporaries(path: Path) -> list[Path]:
    """Return the temporaries of `path`; a path named ``*`` means everything in its folder."""
    name = "*" if path.name == "*" else glob.escape(path.name)
    return [entry for entry in path.parent.glob(f".{name}.*.tmp") if _TEMPORARY.search(entry.name)]


def discard(folder: Path, manifest: str, mark: str) -> None:
    """Remove a folder; a crash never leaves a part of it under its name. Raises OSError, and as :func:`check_own`."""
    check_own(folder, manifest, mark)
    temporary = _hidden_name(folder, "tmp")
    folder.rename(temporary)
    shutil.rmtree(temporary, ignore_errors=True)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sha256_text(parts: Iterable[str]) -> str:
    """Return the SHA-256 of the concatenated parts in UTF-8."""
    return hashlib.sha256("".join(parts).encode("utf-8")).hexdigest()


def file_entry(folder: Path, name: str) -> dict[str, Any]:
    """Return the manifest entry of a file."""
    path = folder / name
    return {"name": name, "bytes": path.stat().st_size, "sha256": sha256(path)}


def are_file_entries(value: object) -> bool:
    """Return whether a value read from a manifest is a list of file entries, each of another file."""
    if not isinstance(value, list) or not all(map(_is_file_entry, value)):
        return False
    return len({entry["name"] for entry in value}) == len(value)


def _is_file_entry(value: object) -> bool:
    """Return whether a value has the keys of a file entry, with the only spelling of a path inside the folder."""
    if not isinstance(value, dict) or not all(isinstance(value.get(key), type_) for key, type_ in _FILE_ENTRY.items()):
        return False
    path = PurePosixPath(value["name"])
    return str(path) == value["name"] and not path.is_absolute() and ".." not in path.parts


def seal(folder: Path, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Flush a complete folder to the disk, write its manifest and return the manifest."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    folders = {path.parent for path in files}
    for path in (*files, *folders):
        sync(path)
    entries = [file_entry(folder, path.relative_to(folder).as_posix()) for path in files]
    manifest = {**content, "files": entries}
    write_json(folder / name, manifest)
    return manifest


def read_seal(path: Path, error_type: type[UserError], advice: object) -> dict[str, Any]:
    """Return a manifest; raise `error_type` if it is missing or does not list its files, each once."""
    manifest = read_json_object(path, error_type, advice)
    if not manifest.get("files") or not are_file_entries(manifest["files"]):
        raise error_type(f"{path} is damaged: it does not list its files; {advice}")
    return manifest


def damage(folder: Path, entry: Mapping[str, Any], *, hashed: bool = True) -> str | None:
    """Return "is missing" or "is damaged: …" if a file's size or, if `hashed`, digest is not its entry's, else None."""
    path = folder / entry["name"]
    try:
        exists = path.is_file()
    except (OSError, ValueError):  # a damaged manifest may contain an impossible file name
        exists = False
    if not exists:
        return "is missing"
    if path.stat().st_size != entry["bytes"] or (hashed and sha256(path) != entry["sha256"]):
        return "is damaged: its SHA-256 is not the one recorded"
    return None


def verify(
    folder: Path,
    entries: Sequence[Mapping[str, Any]],
    error_type: type[UserError],
    advice: object,
    names: Collection[str] | None = None,
) -> None:
    """Raise `error_type` if a file differs from its manifest entry.

    `names` restricts the check to these files. One that exists without an entry is an error: it is not verified.
    """
    unlisted = {*(names or ())}.difference(entry["name"] for entry in entries)
    for name in unlisted:
        if (folder / name).exists():
            raise error_type(f"{folder / name} cannot be verified, because the manifest does not list it; {advice}")
    for entry in entries:
        if names is not None and entry["name"] not in names:
            continue
        problem = damage(folder, entry)
        if problem is not None:
            raise error_type(f"{folder / entry['name']} {problem}; {advice}")
