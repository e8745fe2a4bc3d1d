"""Where runs lie, what is in them, and which one a path or a name means."""

import functools
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from phmctl.checkpoints import saved_steps
from phmctl.console import note
from phmctl.errors import RunError, UserError, nearest
from phmctl.files import read_json_object, sync

# the names of what lies in a run
RECIPE, RECIPE_JSON = "recipe.yaml", "recipe.json"
ENVIRONMENT = "environment.json"
DATA = "data.json"
EXPORT = "export.json"  # what tells an export's folder from a run's
CHECKPOINTS = "checkpoints"
ATTEMPT = "attempt.json"  # there while a training goes on; left by one that failed
LOCK = ".lock"
POINTERS = ("last", "best")
AUTO = "auto"  # the checkpoint that a run chooses itself

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
        sync(parent)
        return target


note_once = functools.cache(note)  # a command opens a run several times


def find_run(path: Path | str) -> Path:
    """The run folder that a path, a name below the root or a tag means.

    Of several versions it is the newest that has a checkpoint, with a note if there are others.
    """
    if not isinstance(path, str | Path) or not str(path):
        raise UserError(f"a run is named by its folder (of a training: result.run.folder), not by {path!r}")
    folder = next((each for each in (Path(path), runs_root() / path) if each.is_dir()), None)
    if folder is not None and ((folder / RECIPE).exists() or _VERSION.fullmatch(folder.name)):
        return folder
    found = select_runs([path])
    apart = found if folder is None else sorted({run.parent for run in found})  # the runs of a tag, or variants
    if len(apart) > 1:
        raise RunError(
            f"{path} means {len(apart)} {'runs' if folder is None else 'variants'}; name one: "
            f"{', '.join(map(str, apart))}"
        )
    chosen = next((run for run in reversed(found) if saved_steps(run / CHECKPOINTS)), found[-1])
    if chosen != found[-1]:
        note_once(f"{found[-1]} has no checkpoint; {chosen} is taken")
    elif len(found) > 1:
        note_once(f"{chosen} is the newest of {len(found)} versions in {chosen.parent}")
    return chosen


def _nearest_run(path: Path, root: Path) -> str:
    runs = list(root.glob("*/*/v*"))
    folders = [*sorted({run.parent for run in runs}), *runs]
    below = [str(folder.relative_to(root)) for folder in folders]
    named = [name for name, folder in zip(below, folders, strict=True) if folder.name == path.name]  # a variant alone
    if named:
        return f" (did you mean {named[0]!r}?)"
    tags = [tag for run in runs if (tag := _tag(run)) is not None]
    return nearest(str(path), [str(folder) for folder in folders]) or nearest(str(path), [*below, *tags])


def select_runs(names: Sequence[str | Path] = (), root: Path | None = None) -> list[Path]:
    """The folders of some runs, or of all, each once, by recipe, variant and version."""
    root = root or runs_root()
    found = [] if names else list(_below(root))
    for name in names:
        path = Path(name)
        below = (list(_below(folder)) for folder in (path, root / path) if folder.is_dir())
        own = next((runs for runs in below if runs), None) or [run for run in _below(root) if _tag(run) == str(name)]
        if not own:
            hint = _nearest_run(path, root)
            where = f"at {name} or below {root} (--runs or PHMCTL_RUNS): no {RECIPE}, and no tag"
            raise RunError(f"no run {where}{hint}; list them with: phmctl runs")
        found += own

    def numbers(folder: Path) -> list[tuple[int, str]]:  # n4 before n16
        return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(folder))]

    return sorted({folder.resolve(): folder for folder in found}.values(), key=numbers)


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


def check_tag(tag: str | None) -> None:
    """Refuse (UserError) a tag that is no plain name: it stands where paths do."""
    if tag is not None and not re.fullmatch(r"[A-Za-z0-9][\w.+-]{0,63}", tag):
        raise UserError(f"--tag {tag}: want a name of letters, digits, '.', '_', '+' and '-', 64 at most")


def _tag(folder: Path) -> str | None:
    path = folder / ENVIRONMENT
    with suppress(RunError):
        tag = read_json_object(path, RunError, "").get("tag") if path.is_file() else None
        return tag if isinstance(tag, str) else None
    return None
