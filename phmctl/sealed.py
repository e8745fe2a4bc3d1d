"""Sealed folders: filled beside their place, flushed, described by a manifest that is written last, then renamed.

Prepared data, checkpoints, exports and sentence vectors are such folders. The manifest lists each file with its bytes
and its SHA-256, so that damage is noticed when a file is used.
"""

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from phmctl.errors import UserError
from phmctl.files import are_file_entries, damage, file_entry, read_json_object, sync_file, sync_folder, write_json


def describe(folder: Path) -> list[dict[str, Any]]:
    """Flush all files of a folder to the disk; return what a manifest says of them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    for path in files:
        sync_file(path)
    for place in {path.parent for path in files}:
        sync_folder(place)
    return [file_entry(folder, path.relative_to(folder).as_posix()) for path in files]


def seal(folder: Path, name: str, content: Mapping[str, Any]) -> dict[str, Any]:
    """Write the manifest of a folder that is otherwise complete; return it."""
    manifest = {**content, "files": describe(folder)}
    write_json(folder / name, manifest)
    return manifest


def read_seal(path: Path, failure: type[UserError], advice: str) -> dict[str, Any]:
    """Return a manifest; `failure` where it is missing or lists no files."""
    manifest = read_json_object(path, failure, advice)
    if not are_file_entries(manifest.get("files")):
        raise failure(f"{path} is damaged: it does not list its files; {advice}")
    return manifest


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
