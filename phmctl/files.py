"""Writing that survives a crash: beside the target, flushed to the disk, then renamed over it."""

import fcntl
import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from phmctl.errors import OutputError, UserError

_CHUNK = 1 << 20


@contextmanager
def writing(where: Path) -> Iterator[None]:
    """Turn an operating system's refusal to write (read-only, full disk) into an :class:`OutputError`."""
    try:
        yield
    except OSError as error:
        raise OutputError(
            f"cannot write {where}: {error.strerror or error}; choose a folder that is writable and has space"
        ) from error


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Hold the lock that a file stands for; the file is made and stays. The end of the process gives the lock back.

    Args:
        path: the lock's file; its folder is made. Who holds the lock may remove both: who waits makes them anew.
        wait: wait while another holds it.

    Yields:
        whether the lock is held: False only without `wait`.

    Raises:
        OutputError: the file cannot be written.
    """
    while True:
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            handle = path.open("a")
        with handle:
            held = _lock(handle.fileno(), path, wait=wait)
            if not held or _is_open_as(handle.fileno(), path):
                yield held
                return


def _is_open_as(descriptor: int, path: Path) -> bool:
    """Return whether an open file is still the one of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _lock(descriptor: int, path: Path, *, wait: bool) -> bool:
    with writing(path):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_file(path: Path) -> None:
    """Flush a file's bytes to the disk."""
    with path.open("rb+") as handle:
        os.fsync(handle.fileno())


def write_atomic(path: Path, content: bytes | str) -> None:
    """Write a file so that a reader sees the old content or the new one, never a part.

    A link is followed; a pipe or a device (``/dev/stdout``) is written to, for a rename would put a file in its place.

    Raises:
        OutputError: the folder cannot be written.
    """
    payload = content.encode("utf-8") if isinstance(content, str) else content
    with writing(path):
        if path.exists() and not path.is_file() and not path.is_dir():
            path.write_bytes(payload)
        else:
            _replace(path.resolve(), payload)


def _replace(path: Path, payload: bytes) -> None:
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with temporary.open("wb") as handle:
            handle.write(payload)
            handle.flush()
            os.fsync(handle.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, atomically, with keys in the order given."""
    write_atomic(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json_object(path: Path, failure: type[UserError], advice: str) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Args:
        path: the file.
        failure: what to raise where there is none: missing, unreadable, no UTF-8, no JSON, or JSON of another kind.
        advice: what to do about it, the end of the message.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise failure(f"{path} is missing; {advice}") from error
    except (OSError, ValueError, RecursionError) as error:
        raise failure(f"{path} cannot be read ({error}); {advice}") from error
    if not isinstance(value, dict):
        raise failure(f"{path} is damaged: it holds no JSON object; {advice}")
    return value


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as handle:
        while chunk := handle.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def file_entry(folder: Path, name: str) -> dict[str, Any]:
    """Return what a manifest says of a file below `folder`: its name, bytes and SHA-256."""
    path = folder / name
    return {"name": name, "bytes": path.stat().st_size, "sha256": sha256(path)}


def are_file_entries(value: object) -> bool:
    """Whether a value read from a manifest is a list of what :func:`file_entry` returns."""
    return isinstance(value, list) and all(
        isinstance(entry, dict) and entry.keys() >= {"name", "bytes", "sha256"} for entry in value
    )


def damaged_files(folder: Path, entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the files that are not those, in size and SHA-256, that the entries describe."""
    return [entry["name"] for entry in entries if not _is_whole(folder / entry["name"], entry)]


def _is_whole(path: Path, entry: Mapping[str, Any]) -> bool:
    return path.is_file() and path.stat().st_size == entry["bytes"] and sha256(path) == entry["sha256"]


def damage(folder: Path, entries: Iterable[Mapping[str, Any]], name: str) -> str | None:
    """Return what is wrong with a file, the end of a sentence, if the entries describe it and it is another now."""
    if not damaged_files(folder, [entry for entry in entries if entry["name"] == name]):
        return None
    return "is damaged: its SHA-256 is not the one recorded" if (folder / name).is_file() else "is missing"


def sha256_text(parts: Iterable[str]) -> str:
    """Return the SHA-256 of text in UTF-8, given in parts, in hexadecimal."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.encode("utf-8"))
    return digest.hexdigest()
