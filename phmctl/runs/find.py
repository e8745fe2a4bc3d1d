"""Where runs lie, and which one a path or a name means."""

import functools
import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from phmctl.checkpoints import saved_steps
from phmctl.console import note
from phmctl.errors import RunError, UserError, nearest
from phmctl.files import sync_folder
from phmctl.runs.names import CHECKPOINTS, ENVIRONMENT, EXPORT, RECIPE

_VERSION = re.compile(r"v(\d{3,})")


_runs: ContextVar[Path | None] = ContextVar("runs", default=None)


def runs_root() -> Path:
    """Where runs are: what :func:`runs_in` says, else ``$PHMCTL_RUNS``, else ``runs`` in the working folder."""
    return _runs.get() or Path(os.environ.get("PHMCTL_RUNS") or "runs")


@contextmanager
def runs_in(folder: Path) -> Iterator[None]:
    """Let `folder` be the folder of runs within the block, in this thread."""
    token = _runs.set(folder)
    try:
        yield
    finally:
        _runs.reset(token)


def versions_in(folder: Path) -> list[Path]:
    """The version folders ``vNNN`` of a variant, ascending by number."""
    if not folder.is_dir():
        return []
    found = [(int(m[1]), entry) for entry in folder.iterdir() if (m := _VERSION.fullmatch(entry.name))]
    return [entry for _, entry in sorted(found)]


def newest(versions: list[Path]) -> Path:
    """The newest version that has a checkpoint, with a note if there are others."""
    whole = [folder for folder in versions if saved_steps(folder / CHECKPOINTS)]
    chosen = (whole or versions)[-1]
    if whole and chosen != versions[-1]:
        _say(f"{versions[-1]} has no checkpoint; {chosen} is taken")
    elif len(versions) > 1:
        _say(f"{chosen} is the newest of {len(versions)} versions in {chosen.parent}")
    return chosen


@functools.cache  # a command opens a run several times
def _say(text: str) -> None:
    note(text)


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


def find_run(path: Path | str) -> Path:
    """The run folder that a path, a name below the root or a tag means."""
    if not isinstance(path, str | Path) or not str(path):
        raise UserError(f"a run is named by its folder, not by {path!r}")
    path = Path(path)
    candidates = [path] if path.is_absolute() else [path, runs_root() / path]
    folder = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if folder is None and (tagged := _tagged(str(path), runs_root())):
        if len(tagged) == 1:
            return tagged[0]
        raise RunError(f"{len(tagged)} runs have the tag {path}; name one: {', '.join(map(str, tagged))}")
    if folder is None:
        hint = f"list them with: phmctl runs; PHMCTL_RUNS names their folder, {runs_root()} now"
        raise RunError(f"no run at {path}{_nearest_run(path)}; {hint}")
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


def _nearest_run(path: Path, root: Path | None = None) -> str:
    root = root or runs_root()
    known = list(root.glob("*/*/v*")) if root.is_dir() else []
    variants = sorted({run.parent for run in known})
    whole = [str(folder) for folder in (*variants, *known)]
    below = [str(folder.relative_to(root)) for folder in (*variants, *known)]
    return nearest(str(path), whole) or nearest(str(path), below)


# --------------------------------------------------------------------------------------------------------- many runs


def select_runs(names: Sequence[str | Path] = (), root: Path | None = None) -> list[Path]:
    """The folders of some runs, each once, by recipe, variant and version."""
    root = root or runs_root()
    found = [folder for name in names for folder in _named(name, root)] if names else list(_below(root))
    return sorted({folder.resolve(): folder for folder in found}.values(), key=_order)


def _named(name: str | Path, root: Path) -> list[Path]:
    path = Path(name)
    for folder in (path, root / path):
        if folder.is_dir() and (found := list(_below(folder))):
            return found
    if found := _tagged(str(name), root):
        return found
    if variants := sorted(str(each.relative_to(root)) for each in root.glob(f"*/{path.name}") if versions_in(each)):
        raise RunError(f"no run at {name}; a variant is named behind its recipe: {', '.join(variants)}")
    tags = {tag for folder in _below(root) if (tag := _tag(folder)) is not None}
    hint = _nearest_run(path, root) or nearest(str(name), tags)
    raise RunError(f"no run at {name}, and none has this tag{hint}; list them with: phmctl runs")


def _below(folder: Path, depth: int = 3) -> Iterator[Path]:
    """A folder if it is a run, else the runs up to three folders below it. Exports are no runs."""
    if (folder / EXPORT).is_file():
        return
    if (folder / RECIPE).is_file() or _VERSION.fullmatch(folder.name):
        yield folder
        return
    with suppress(OSError):
        for entry in folder.iterdir() if depth else ():
            if entry.is_dir() and not entry.name.startswith("."):  # a link to itself is none
                yield from _below(entry, depth - 1)


def check_tag(tag: str) -> None:
    """Refuse (UserError) a tag that is no plain name: it stands where paths do."""
    if not re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,63}", tag):
        raise UserError(f"--tag {tag}: want a name of letters, digits, '.', '_', '+' and '-', 64 at most")


def _tagged(tag: str, root: Path) -> list[Path]:
    return sorted((folder for folder in _below(root) if _tag(folder) == tag), key=_order)


def _tag(folder: Path) -> str | None:
    path = folder / ENVIRONMENT
    try:
        tag = json.loads(path.read_bytes()).get("tag") if path.is_file() else None
    except (OSError, ValueError, RecursionError, AttributeError):
        return None
    return tag if isinstance(tag, str) else None


def _order(folder: Path) -> list[tuple[int, str]]:
    """What sorts folders by name, the numbers in them by their value: n4 before n16."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(folder))]
