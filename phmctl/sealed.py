"""Sealed folders: filled beside their place, flushed, described by a manifest that is written last, then renamed.

Prepared data, checkpoints, exports and sentence vectors are such folders. The manifest says of each file its name,
bytes and SHA-256, so that damage is noticed when a file is used.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from phmctl.errors import UserError
from phmctl.files import read_json_object, sha256, sync_file, sync_folder, write_json

_ENTRY = {"name": str, "bytes": int, "sha256": str}  # what a manifest says of a file


def file_entry(folder: Path, name: str) -> dict[str, Any]:
    """What a manifest says of a file below `folder`."""
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
    for path in files:
        sync_file(path)
    for place in {path.parent for path in files}:
        sync_folder(place)
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
