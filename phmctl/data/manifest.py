"""The manifest of a prepared folder: what is in it, and whether it is still that."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from phmctl.errors import DataError
from phmctl.files import are_file_entries, damage, file_entry, read_json_object, write_json

MANIFEST = "manifest.json"
FORMAT = "phmctl-prepared-1"
_KEYS = ("settings", "token_types", "splits", "files")  # of a manifest, at least


def write_manifest(folder: Path, content: Mapping[str, Any]) -> None:
    """Write the manifest of a folder that is otherwise complete: the content, and size and SHA-256 of each file.

    Raises:
        OutputError: the folder cannot be written.
    """
    files = [file_entry(folder, path.name) for path in sorted(folder.iterdir())]
    write_json(folder / MANIFEST, {"format": FORMAT, **content, "files": files})


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """Return the manifest of a prepared folder, or None where there is none.

    Raises:
        DataError: the manifest is damaged or of another version.
    """
    path = folder / MANIFEST
    if not path.exists():
        return None
    manifest = read_json_object(path, DataError, "prepare the data again with --force")
    if manifest.get("format") != FORMAT:
        raise DataError(f"{path} is not of this version of phmctl ({FORMAT}); prepare again with --force")
    if any(key not in manifest for key in _KEYS) or not are_file_entries(manifest["files"]):
        raise DataError(f"{path} is damaged: it does not say all it must; prepare the data again with --force")
    return manifest


def refuse_damage(folder: Path, manifest: dict[str, Any], name: str, command: str) -> None:
    """Raise a DataError if the manifest lists this file and it is another now."""
    wrong = damage(folder, manifest["files"], name)
    if wrong:
        raise DataError(f"{folder / name} {wrong}; run: {command} --force")
