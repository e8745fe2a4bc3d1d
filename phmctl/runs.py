"""Run directories: everything of one training in one folder that can be moved to another machine.

::

    runs/<recipe>/<variant>/v001/
        recipe.yaml        the resolved recipe
        data.json          what it was trained on; SHA-256 of tokenizer/ and text/
        environment.json   versions, seed, device, threads, git revision, command line
        tokenizer/         how text becomes tokens
        text/              valid and test text, cased: valid.source, valid.target, test.source, test.target
        metrics.jsonl      one line a log interval or validation
        checkpoints/       step-000200/ …, average/, and the text files `last` and `best` that name one
        results/           what eval and decode write
"""

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from phmctl import __version__
from phmctl.checkpoints import AVERAGE, MANIFEST, saved_steps, step_name, verify_checkpoint
from phmctl.console import note
from phmctl.errors import RecipeError, RunError, nearest
from phmctl.files import (
    locked,
    read_json_object,
    sha256,
    sweep,
    sync_folder,
    temporary_folder,
    write_atomic,
    write_json,
    writing,
)

if TYPE_CHECKING:
    from phmctl.recipe.schema import Recipe

Kind = TypeVar("Kind", bound="Recipe")
Loaded = TypeVar("Loaded")

RECIPE = "recipe.yaml"
ENVIRONMENT = "environment.json"
DATA = "data.json"
EXPORT = "export.json"  # what tells an export's folder from a run's
POINTERS = ("last", "best")
_CHECKPOINTS = "checkpoints"
_LOCK = ".lock"
_VERSION = re.compile(r"v(\d{3,})")
_LIBRARIES = ("torch", "tokenizers", "datasets", "sacrebleu", "safetensors", "numpy")


def runs_root() -> Path:
    """Return where runs are written: the environment's ``PHMCTL_RUNS``, or ``runs`` in the working folder."""
    return Path(os.environ.get("PHMCTL_RUNS") or "runs")


@dataclass(frozen=True)
class Weights:
    """What tells the weights of one checkpoint from others.

    Attributes:
        name: the checkpoint's.
        sha256: of the manifest that holds the SHA-256 of each of its files.
    """

    name: str
    sha256: str


@dataclass(frozen=True)
class Run:
    """One training's folder and its resolved recipe."""

    folder: Path
    recipe: "Recipe"

    @classmethod
    def create(
        cls,
        root: Path,
        recipe: "Recipe",
        *,
        environment: Mapping[str, Any] | None = None,
        fill: Callable[[Self], None] | None = None,
    ) -> Self:
        """Make a new version folder ``<root>/<recipe.name>/<recipe.variant>/vNNN``; none is ever overwritten.

        The folder is filled under another name and then renamed, so a run that exists is complete, and of two
        processes that start at once each gets its own number.

        Args:
            root: the folder of all runs.
            recipe: the resolved recipe.
            environment: further entries of ``environment.json`` (device, precision, …).
            fill: writes what else belongs into the run (tokenizer, text); called before the run has its final name.

        Raises:
            OutputError: the folder cannot be written.
        """
        from phmctl.recipe.loading import dump_recipe

        parent = root / recipe.name / recipe.variant
        with writing(parent):
            parent.mkdir(parents=True, exist_ok=True)
            sweep(parent)
            with temporary_folder(parent / "new") as temporary:
                if fill is not None:
                    fill(cls(temporary, recipe))
                for name in (_CHECKPOINTS, "results"):
                    (temporary / name).mkdir()
                write_json(temporary / ENVIRONMENT, describe_environment(recipe) | dict(environment or {}))
                write_atomic(temporary / RECIPE, dump_recipe(recipe))
                return cls(_claim_version(temporary, parent), recipe)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a run by its folder, by a variant's folder, or by its name below the root.

        Of several versions it is the newest that has a checkpoint: a start that failed does not hide the run before it.

        Raises:
            RunError: nothing is there (the message names the nearest run), or the run is not complete.
        """
        folder = _find(Path(path))
        if (folder / EXPORT).is_file():
            raise RunError(
                f"{folder} is an export, not a run: decode, eval and serve take it; "
                "training and exporting want the run that it came from"
            )
        for name in (RECIPE, ENVIRONMENT):
            if not (folder / name).is_file():
                raise RunError(
                    f"{folder} is no complete run: {name} is missing; copy the whole folder again, or train anew"
                )
        return cls(folder, read_recipe(folder / RECIPE))

    @classmethod
    def latest(cls, root: Path, recipe: "Recipe") -> Self | None:
        """Return the newest run of the recipe's name and variant that has a checkpoint, the newest if none has.

        None where there is no run.
        """
        versions = _versions(root / recipe.name / recipe.variant)
        return cls.open(_newest(versions)) if versions else None

    @property
    def name(self) -> str:
        """``<recipe>/<variant>/vNNN``, wherever the folder lies; its own name stands for the version."""
        return f"{self.recipe.name}/{self.recipe.variant}/{self.folder.resolve().name}"

    def recipe_of(self, kind: type[Kind]) -> Kind:
        """Return the recipe as one of the task wanted.

        Raises:
            RunError: it is another task's.
        """
        if not isinstance(self.recipe, kind):
            wanted = kind.model_fields["task"].default
            raise RunError(f"{self.folder} is a run of task {self.recipe.task!r}, not {wanted!r}")
        return self.recipe

    @property
    def tokenizer_folder(self) -> Path:
        """Where the tokenizers lie."""
        return self.folder / "tokenizer"

    @property
    def text_folder(self) -> Path:
        """Where the raw validation and test text lies."""
        return self.folder / "text"

    @property
    def results_folder(self) -> Path:
        """Where results are written."""
        return self.folder / "results"

    @property
    def checkpoints_folder(self) -> Path:
        """Where the checkpoints lie."""
        return self.folder / _CHECKPOINTS

    @property
    def metrics_path(self) -> Path:
        """The metrics, one JSON object a line."""
        return self.folder / "metrics.jsonl"

    def checkpoint_names(self) -> list[str]:
        """Return what :meth:`checkpoint` takes: ``last``, ``best``, ``average`` where they exist, and steps."""
        folder = self.checkpoints_folder
        names = [name for name in POINTERS if (folder / name).is_file()]
        names += [AVERAGE] if (folder / AVERAGE).is_dir() else []
        return names + [step_name(step) for step in saved_steps(folder)]

    def checkpoint(self, name: str = "best") -> Path:
        """Return a checkpoint's folder.

        Args:
            name: ``best``, ``last``, ``average``, ``step-000200`` or plainly ``200``.

        Raises:
            RunError: there is none of this name; the message lists those that exist.
        """
        if name in POINTERS:
            return self._follow(name)
        folder = self.checkpoints_folder / (step_name(int(name)) if name.isdecimal() else name)
        if folder.is_dir() and folder.parent == self.checkpoints_folder:
            return folder
        names = self.checkpoint_names()
        if not names:
            raise RunError(f"{self.folder} has no checkpoint yet; train it further with: {self.resume_command}")
        raise RunError(f"{self.folder} has no checkpoint {name!r}{nearest(name, names)}; it has {', '.join(names)}")

    def use(self, name: str, read: Callable[[str], Loaded]) -> Loaded:
        """Return what `read` makes of a checkpoint. It is given the name of the folder: `name` is followed once.

        A training beside this process may prune the folder while it is read: then `name` is followed again.

        Raises:
            RunError: what `read` raises, or there is no checkpoint of this name.
        """
        folder = self.checkpoint(name)
        while True:
            try:
                return read(folder.name)
            except (RunError, FileNotFoundError):
                if folder.is_dir():
                    raise
                before, folder = folder, self.checkpoint(name)
                if folder == before:
                    raise

    def _follow(self, name: str) -> Path:
        pointer = self.checkpoints_folder / name
        names = [other for other in self.checkpoint_names() if other not in POINTERS]
        if not names:
            raise RunError(f"{self.folder} has no checkpoint yet; train it further with: {self.resume_command}")
        if not pointer.is_file():
            others = [other for other in POINTERS if (self.checkpoints_folder / other).is_file()] or names
            why = " yet: no validation has chosen one" if name == "best" else ""
            raise RunError(
                f"{self.folder} has no {name!r} checkpoint{why}; use --checkpoint {others[0]} "
                f"(there are: {', '.join(self.checkpoint_names())})"
            )
        target = _read_pointer(pointer)
        if target not in names and target in self.checkpoint_names():  # saved since they were listed
            return self._follow(name)
        if target not in names:
            wrong = "is damaged" if target is None else f"names {target!r}, which does not exist"
            raise RunError(f"{pointer} {wrong}; use another: --checkpoint {' or '.join(names)}")
        return self.checkpoints_folder / target

    def weights(self, name: str = "best") -> Weights:
        """Return what tells a checkpoint's weights from others.

        Raises:
            RunError: there is no such checkpoint, or it is not complete.
        """
        folder = self.checkpoint(name)
        if not (folder / MANIFEST).is_file():
            verify_checkpoint(folder, ())  # says what is missing and which checkpoint to use instead
        return Weights(folder.name, sha256(folder / MANIFEST))

    def verify_weights(self, name: str = "best") -> None:
        """Compare a checkpoint's weights with its manifest. Raises RunError."""
        verify_checkpoint(self.checkpoint(name), ("model",))

    def point(self, name: str, step: int | None) -> None:
        """Let ``last`` or ``best`` name the checkpoint of a step; None removes it.

        Raises:
            OutputError: the pointer cannot be written.
        """
        path = self.checkpoints_folder / name
        if step is None:
            with writing(path):
                path.unlink(missing_ok=True)
        elif _read_pointer(path) != step_name(step):
            write_atomic(path, step_name(step) + "\n")

    @property
    def resume_command(self) -> str:
        """The command that continues this run, quoted for a shell."""
        return shlex.join(["phmctl", "train", str(self.folder / RECIPE), "--run", str(self.folder), "--resume"])

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other processes from training this run while the block lasts.

        Raises:
            RunError: another process trains it.
            OutputError: the folder cannot be written.
        """
        with locked(self.folder / _LOCK, wait=False) as held:
            if not held:
                raise RunError(
                    f"another process is training this run: {self.folder}; wait for it or stop it, "
                    "or leave --resume out to start a new run"
                )
            yield

    def environment(self) -> dict[str, Any]:
        """Return what ``environment.json`` holds.

        Raises:
            RunError: it is damaged.
        """
        path, advice = self.folder / ENVIRONMENT, "copy the run again"
        value = read_json_object(path, RunError, advice)
        if not isinstance(value.get("resumed", []), list):
            raise RunError(f"{path} is damaged: 'resumed' is no list; {advice}")
        return value

    def data(self) -> dict[str, Any]:
        """Return what ``data.json`` holds: the manifest of the data that the run was trained on.

        Raises:
            RunError: it is missing or damaged.
        """
        return read_json_object(self.folder / DATA, RunError, "copy the whole run again, or train anew")


def read_recipe(path: Path) -> "Recipe":
    """Return a run's recipe. Every key was written: one that is cut off would have defaults that nobody meant."""
    from phmctl.recipe.documents import read_document
    from phmctl.recipe.loading import validate_recipe

    try:
        document = read_document(path, RecipeError)
        recipe = validate_recipe(document)
    except RecipeError as error:
        raise RunError(f"{path} cannot be used: {error}\ncopy the run again, or train anew") from error
    missing = [key for key in type(recipe).model_fields if key not in document.content]
    if missing or not path.read_bytes().endswith(b"\n"):
        lacks = f" before {missing[0]!r}" if missing else ""
        raise RunError(f"{path} is damaged: it is cut off{lacks}; copy the run again, or train anew")
    return recipe


def _read_pointer(path: Path) -> str | None:
    """Return the name in the one-line file `path`; None where there is no such line."""
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return None
    return lines[0].strip() if any(lines) and not any(lines[1:]) else None


# ------------------------------------------------------------------------------------------------- finding runs


def _versions(folder: Path) -> list[Path]:
    """Return the version folders ``vNNN`` of a variant, ascending by number."""
    if not folder.is_dir():
        return []
    found = [(int(m[1]), entry) for entry in folder.iterdir() if (m := _VERSION.fullmatch(entry.name))]
    return [entry for _, entry in sorted(found)]


def _newest(versions: list[Path]) -> Path:
    """Return the newest version that has a checkpoint, with a note if it is not the newest of all."""
    for folder in reversed(versions):
        if saved_steps(folder / _CHECKPOINTS):
            if folder != versions[-1]:
                note(f"{versions[-1]} has no checkpoint; {folder} is taken")
            return folder
    return versions[-1]


def _claim_version(temporary: Path, parent: Path) -> Path:
    """Rename `temporary` to the next free version folder. A rename onto a filled folder fails: try the next."""
    while True:
        versions = _versions(parent)
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


def _find(path: Path) -> Path:
    """Return the run folder that a path or a name below the root means."""
    candidates = [path] if path.is_absolute() else [path, runs_root() / path]
    folder = next((candidate for candidate in candidates if candidate.is_dir()), None)
    if folder is None:
        raise RunError(f"no run at {path}{_nearest_run(path)}; list them with: ls {runs_root()}/*/*")
    if (folder / RECIPE).exists() or _VERSION.fullmatch(folder.name):
        return folder
    if versions := _versions(folder):
        return _newest(versions)
    variants = [entry for entry in sorted(folder.iterdir()) if _versions(entry)]
    if len(variants) == 1:
        return _newest(_versions(variants[0]))
    if variants:
        raise RunError(f"{folder} has several variants; name one: {', '.join(str(each) for each in variants)}")
    raise RunError(f"{folder} is not a run: {RECIPE} is missing{_nearest_run(path)}")


def _nearest_run(path: Path) -> str:
    root = runs_root()
    known = [str(entry) for entry in root.glob("*/*/v*")] if root.is_dir() else []
    variants = sorted({str(Path(run).parent) for run in known})
    return nearest(str(path), [*variants, *known]) or nearest(str(root / path), [*variants, *known])


# -------------------------------------------------------------------------------------------------- environment


def describe_environment(recipe: "Recipe") -> dict[str, Any]:
    """Return where and with what this process runs: versions, platform, seed, git revision, command line, time."""
    return {
        "phmctl": __version__,
        "git": git_revision(),
        "python": platform.python_version(),
        "libraries": {name: _installed(name) for name in _LIBRARIES},
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "seed": recipe.training.seed,
        "precision": recipe.training.precision,
        "command": shlex.join(sys.argv),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def git_revision() -> str | None:
    """Return the commit of the checkout that phmctl is imported from (``-dirty`` when changed), or None."""
    checkout = Path(__file__).resolve().parent.parent
    if not (checkout / ".git").exists():
        return None
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
