"""Where runs lie, and which one a path or a name means."""

import os
import re
from pathlib import Path

from phmctl.checkpoints import saved_steps
from phmctl.console import note
from phmctl.errors import RunError, nearest
from phmctl.files import sync_folder
from phmctl.runs.names import CHECKPOINTS, RECIPE

_VERSION = re.compile(r"v(\d{3,})")


def runs_root() -> Path:
    """Return where runs are written: the environment's ``PHMCTL_RUNS``, or ``runs`` in the working folder."""
    return Path(os.environ.get("PHMCTL_RUNS") or "runs")


def versions_in(folder: Path) -> list[Path]:
    """Return the version folders ``vNNN`` of a variant, ascending by number."""
    if not folder.is_dir():
        return []
    found = [(int(m[1]), entry) for entry in folder.iterdir() if (m := _VERSION.fullmatch(entry.name))]
    return [entry for _, entry in sorted(found)]


def newest(versions: list[Path]) -> Path:
    """Return the newest version that has a checkpoint, with a note if it is not the newest of all."""
    for folder in reversed(versions):
        if saved_steps(folder / CHECKPOINTS):
            if folder != versions[-1]:
                note(f"{versions[-1]} has no checkpoint; {folder} is taken")
            return folder
    return versions[-1]


def claim_version(temporary: Path, parent: Path) -> Path:
    """Rename `temporary` to the next free version folder. A rename onto a filled folder fails: try the next."""
    while True:
        versions = versions_in(parent)
        number = 1 + int(versions[-1].name[1:]) if versions else 1
        target = parent / f"v{number:03d}"
        try:
            temporary.rename(target)
        except OSError:
            if not target.exists():
                raise
            continue
        sync_folder(parent)
        return target


def find_run(path: Path) -> Path:
    """Return the run folder that a path or a name below the root means."""
    candidates = [path] if path.is_absolute() else [path, runs_root() / path]
    folder = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if folder is None:
        raise RunError(f"no run at {path}{_nearest_run(path)}; list them with: ls {runs_root()}/*/*")
    if (folder / RECIPE).exists() or _VERSION.fullmatch(folder.name):
        return folder
    if versions := versions_in(folder):
        return newest(versions)
    variants = [entry for entry in sorted(folder.iterdir()) if versions_in(entry)]
    if len(variants) == 1:
        return newest(versions_in(variants[0]))
    if variants:
        raise RunError(f"{folder} has several variants; name one: {', '.join(str(each) for each in variants)}")
    raise RunError(f"{folder} is not a run: {RECIPE} is missing{_nearest_run(path)}")


def _nearest_run(path: Path) -> str:
    root = runs_root()
    known = [str(entry) for entry in root.glob("*/*/v*")] if root.is_dir() else []
    variants = sorted({str(Path(run).parent) for run in known})
    return nearest(str(path), [*variants, *known]) or nearest(str(root / path), [*variants, *known])
