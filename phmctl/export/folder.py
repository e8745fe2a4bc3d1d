"""An export's folder: filled beside its place, flushed, described by a manifest, then renamed."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from phmctl import __version__
from phmctl.errors import OutputError
from phmctl.exports import FORMAT
from phmctl.files import file_entry, replacing, sync_file, sync_folder, write_json, writing
from phmctl.runs import EXPORT


def check_output(folder: Path, *, force: bool) -> None:
    """Refuse an output folder that would be overwritten."""
    if not folder.exists():
        return
    if not folder.is_dir():
        raise OutputError(f"{folder} is a file; name a folder that is empty or does not exist")
    if not any(folder.iterdir()):
        return
    if not (folder / EXPORT).is_file():
        raise OutputError(f"{folder} is not empty and holds no export, so it is never overwritten; name another folder")
    if not force:
        raise OutputError(f"{folder} is not empty; name another folder, or overwrite the export there with --force")


def write_export(folder: Path, fill: Callable[[Path], Mapping[str, Any]], *, force: bool = False) -> None:
    """Write an export; where it fails, nothing is left and what stood there stands."""
    check_output(folder, force=force)
    target = folder.resolve()
    with writing(folder), replacing(target) as temporary:
        described = fill(temporary)
        files = sorted(path for path in temporary.rglob("*") if path.is_file())
        for path in files:
            sync_file(path)
        entries = [file_entry(temporary, path.relative_to(temporary).as_posix()) for path in files]
        for place in {path.parent for path in files}:
            sync_folder(place)
        write_json(temporary / EXPORT, {"format": FORMAT, "phmctl": __version__, **described, "files": entries})
        check_output(target, force=force)  # somebody may have filled it meanwhile
