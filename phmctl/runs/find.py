"""Find run folders by path, name or tag."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from phmctl.console import note
from phmctl.errors import RunError, UserError, nearest
from phmctl.storage import read_json_object, saved_steps

# Names of files and folders in a run.
RECIPE = "recipe.yaml"
ENVIRONMENT = "environment.json"
DATA = "data.json"
EXPORT = "export.json"  # distinguishes the folder of an export from a run
CHECKPOINTS = "checkpoints"
ATTEMPT = "attempt.json"  # exists during a training and after a failed one
LOCK = ".lock"
POINTERS = ("last", "best")
AUTO = "auto"  # the checkpoint that the run's recipe selects

_TAG = re.compile(r"[A-Za-z0-9][\w.+-]{0,63}")
_VERSION = re.compile(r"v(\d{3,})")
KILLED = "the process ended without an error message, perhaps because it was killed"
_SEARCH_DEPTH = 3  # <recipe>/<variant>/<version>


def runs_root(folder: str | Path | None = None) -> Path:
    """Return the folder of runs: `folder`, otherwise ``$PHMCTL_RUNS``, otherwise ``runs``."""
    return Path(folder or os.environ.get("PHMCTL_RUNS") or "runs")


def find_run(name: Path | str, root: str | Path | None = None) -> Path:
    """Return the folder of the run with a path, a name below `root`, or a tag. Raises RunError.

    Of several versions the newest with a checkpoint is returned, and a note says so.
    """
    if not isinstance(name, str | Path) or not str(name):
        raise UserError(f"a run is named by the folder (after a training: result.run.folder), not by {name!r}")
    root = runs_root(root)
    folder = next((path for path in (Path(name), root / name) if path.is_dir()), None)
    if folder is not None and ((folder / RECIPE).exists() or _VERSION.fullmatch(folder.name)):
        return folder
    runs = select_runs([name], root)
    if folder is None:
        candidates, noun = runs, "runs"  # with this tag
    else:
        candidates, noun = sorted({run.parent for run in runs}), "variants"
    if len(candidates) > 1:
        raise RunError(f"{name} means {len(candidates)} {noun}: name one: {', '.join(map(str, candidates))}")
    with_checkpoint = [run for run in runs if saved_steps(run / CHECKPOINTS)]
    newest = with_checkpoint[-1] if with_checkpoint else runs[-1]
    if newest != runs[-1]:
        note(f"{runs[-1]} has no checkpoint: {newest} is taken")
    elif len(runs) > 1:
        note(f"{newest} is the newest of {len(runs)} versions in {newest.parent}")
    return newest


def select_runs(names: Sequence[str | Path] = (), root: str | Path | None = None) -> list[Path]:
    """Return the folders of the named runs, or of all below `root`, each once and in natural order. Raises RunError."""
    root = runs_root(root)
    runs = [] if names else list(_runs_below(root))
    for name in names:
        folders = [folder for folder in (Path(name), root / name) if folder.is_dir()]
        matching = next(filter(None, (list(_runs_below(folder)) for folder in folders)), None)
        matching = matching or [run for run in _runs_below(root) if read_tag(run) == str(name)]
        if not matching:
            raise RunError(
                f"no run at {name} or below {root} (--runs or PHMCTL_RUNS): no {RECIPE}, and no tag"
                f"{_nearest_run(Path(name), root)} (list them with: phmctl runs)"
            )
        runs += matching
    unique = {run.resolve(): run for run in runs}
    return sorted(unique.values(), key=_natural_order)


def _natural_order(folder: Path) -> list[tuple[int, str]]:
    """Return a key that sorts n4 before n16."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", str(folder))]


def _runs_below(folder: Path, depth: int = _SEARCH_DEPTH) -> Iterator[Path]:
    """Yield a folder if it is a run, otherwise the runs at most `depth` folders below it. Exports are skipped."""
    if (folder / EXPORT).is_file():
        return
    if (folder / RECIPE).is_file() or _VERSION.fullmatch(folder.name):
        yield folder
        return
    if depth == 0:
        return
    with suppress(OSError):
        for path in folder.iterdir():
            if path.is_dir() and not path.name.startswith("."):
                yield from _runs_below(path, depth - 1)


def _nearest_run(path: Path, root: Path) -> str:
    """Return the clause that suggests the run whose name or tag is most similar, or an empty string."""
    name = str(path.relative_to(root) if path.is_relative_to(root) else path)
    runs = list(root.glob("*/*/v*"))
    folders = [*sorted({run.parent for run in runs}), *runs]
    names = [str(folder.relative_to(root)) for folder in folders]
    for candidate in names:
        if candidate.endswith(f"/{name}"):  # a variant without the recipe
            return f" (did you mean {candidate!r}?)"
    return nearest(name, [*names, *filter(None, map(read_tag, runs))])


def check_tag(tag: str | None) -> None:
    """Raise UserError unless a tag is a plain name. It can be given instead of a path."""
    if tag is not None and not _TAG.fullmatch(tag):
        raise UserError(f"--tag {tag}: use at most 64 letters, digits, '.', '_', '+' and '-'")


def read_tag(run: Path) -> str | None:
    """Return the tag of a run (``train --tag``), or None."""
    tag = _read_text(run / ENVIRONMENT, "tag")
    return tag if tag and _TAG.fullmatch(tag) else None


def read_failure(run: Path) -> str | None:
    """Return the error of a run's last training, or None if it neither failed nor was killed."""
    path = run / ATTEMPT
    return (_read_text(path, "error") or KILLED) if path.exists() else None


def _read_text(path: Path, key: str) -> str | None:
    """Return the text of a key in a JSON file, or None if the file or the key is missing or damaged."""
    if path.is_file():
        with suppress(RunError):
            value = read_json_object(path, RunError, "").get(key)
            return value if isinstance(value, str) else None
    return None
