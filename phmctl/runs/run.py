"""Run directories: everything of one training in one folder, which can be moved to another machine.

::

    runs/<recipe>/<variant>/v001/
        recipe.yaml        the resolved recipe
        data.json          the manifest of the training data: settings, sources with SHA-256, counts
        environment.json   versions, seed, device, threads, git revision
        tokenizer/         the tokenizers
        text/              valid and test text, cased: valid.source, valid.target, test.source, test.target
        metrics.jsonl      one line per logged interval or validation
        rates.json         the learning rate of each parameter relative to the recipe's, if they are structured
        truth.safetensors  the true rule of a run that learns one
        failure.json       the error of the last training, if it failed
        checkpoints/       step-000200/ …, average/, and the text files `last` and `best`, which name a checkpoint
        results/           scores and translations
"""

import importlib.metadata
import os
import platform
import re
import shlex
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from phmctl.console import note
from phmctl.devices import processor_name
from phmctl.errors import OutputError, RecipeError, RunError, UserError, nearest
from phmctl.recipe.documents import read_document
from phmctl.recipe.loading import dump_recipe, validate_recipe
from phmctl.recipe.schema import Recipe, differences
from phmctl.storage import (
    AVERAGE,
    MANIFEST,
    folder_name,
    lock,
    read_checkpoint,
    read_json_object,
    read_manifest,
    saved_steps,
    sha256,
    sole_writer,
    step_name,
    step_of,
    sync,
    temporary_folder,
    write_atomic,
    write_json,
    writing,
)
from phmctl.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

# Names of files and folders in a run.
RECIPE = "recipe.yaml"
ENVIRONMENT = "environment.json"
DATA = "data.json"
EXPORT = "export.json"  # distinguishes the folder of an export from a run
CHECKPOINTS = "checkpoints"
FAILURE = "failure.json"  # the error of the last training, if it failed
LOCK = ".lock"
POINTERS = ("last", "best")
AUTO = "auto"  # the checkpoint that the run's recipe selects

_TAG = re.compile(r"[A-Za-z0-9][\w.+-]{0,63}")
_VERSION = re.compile(r"v(\d{3,})")
_SEARCH_DEPTH = 3  # <recipe>/<variant>/<version>

RecipeType = TypeVar("RecipeType", bound=Recipe)
_ADVICE = "copy the run again, or train again"
_LIBRARIES = ("torch", "tokenizers", "datasets", "sacrebleu", "safetensors", "numpy")


@dataclass(frozen=True)
class Weights:
    """The identity of a checkpoint's weights."""

    name: str  # the checkpoint's
    sha256: str  # the manifest's, which contains the SHA-256 of every file


@dataclass(frozen=True)
class Trained(ABC):
    """The folder of a trained model and the recipe: a run, or an export of one of a run's checkpoints."""

    folder: Path
    recipe: Recipe

    @property
    @abstractmethod
    def name(self) -> str: ...

    @abstractmethod
    def chosen(self, name: str) -> str:
        """Return the name of the checkpoint that a name means, such as ``auto``. Raises RunError."""

    @abstractmethod
    def weights(self, checkpoint: str = "best") -> Weights:
        """Return the identity of a checkpoint's weights. Raises RunError."""

    def recipe_of(self, recipe_type: type[RecipeType]) -> RecipeType:
        """Return the recipe. Raises RunError if it belongs to another task."""
        if not isinstance(self.recipe, recipe_type):
            task = recipe_type.model_fields["task"].default
            raise RunError(f"{self.folder} is a run of task {self.recipe.task!r}, not {task!r}")
        return self.recipe

    @property
    def tokenizer_folder(self) -> Path:
        return self.folder / "tokenizer"

    @property
    def text_folder(self) -> Path:
        return self.folder / "text"

    def text_path(self, name: str) -> Path:
        """Return the path of a text. Raises RunError if it is damaged, which only an export's manifest tells."""
        return self.text_folder / name

    @property
    def results_folder(self) -> Path:
        return self.folder / "results"

    def data(self) -> dict[str, Any]:
        """Return the content of ``data.json``, the manifest of the training data. Raises RunError."""
        return read_json_object(self.folder / DATA, RunError, _ADVICE)

    def splits(self) -> list[str]:
        """Return the splits whose text is in the folder."""
        return sorted({path.stem for path in self.text_folder.glob("[!.]*.*")})


@dataclass(frozen=True)
class Run(Trained):
    """The folder of one training and the resolved recipe."""

    @classmethod
    def create(
        cls,
        root: Path,
        recipe: Recipe,
        *,
        environment: Mapping[str, object] | None = None,
        fill: Callable[[Self], None] | None = None,
    ) -> Self:
        """Create the next version folder ``<root>/<recipe.name>/<recipe.variant>/vNNN``. No run is overwritten.

        The folder gets the name when it is complete. `fill` writes the tokenizers and texts into it before that.
        """
        parent = root / recipe.name / recipe.variant
        with writing(parent), sole_writer(parent / "new"), temporary_folder(parent / "new") as temporary:
            if fill is not None:
                fill(cls(temporary, recipe))
            for name in (CHECKPOINTS, "results"):
                (temporary / name).mkdir()
            write_json(temporary / ENVIRONMENT, describe_environment(recipe) | dict(environment or {}))
            write_recipe(temporary, recipe)
            versions = (_VERSION.fullmatch(path.name) for path in parent.iterdir())
            number = 1 + max((int(match[1]) for match in versions if match), default=0)
            folder = temporary.rename(parent / f"v{number:03d}")
            sync(parent)
            return cls(folder, recipe)

    @classmethod
    def open(cls, name: Path | str, root: str | Path | None = None) -> Self:
        """Open the run with a path, a name below `root` or a tag. See :func:`find_run`."""
        folder = find_run(name, root)
        _refuse_export(folder)
        for file_name in (RECIPE, ENVIRONMENT):
            if not (folder / file_name).is_file():
                raise RunError(f"{folder} is incomplete: {file_name} is missing: {_ADVICE}")
        return cls(folder, read_recipe(folder / RECIPE))

    @classmethod
    def trained_with(
        cls, root: Path, recipe: Recipe, changes: Callable[[Recipe, Recipe], Mapping[str, object]]
    ) -> Iterator[Self]:
        """Yield the runs below `root` whose recipe has no `changes` from another one, newest first.

        Notes name the runs that cannot be read.
        """
        runs: list[tuple[str, int, Self]] = []
        for folder in select_runs(root=root):
            try:
                run = cls.open(folder)
                started = str(run.environment().get("started"))
            except RunError as error:
                note(f"skipped: {error}")
                continue
            if not changes(run.recipe, recipe):
                runs.append((started, len(runs), run))
        for *_, run in sorted(runs, reverse=True, key=lambda entry: entry[:2]):
            yield run

    @property
    def name(self) -> str:
        """``<recipe>/<variant>/<folder name>``, also for a moved folder."""
        return f"{self.recipe.name}/{self.recipe.variant}/{self.folder.resolve().name}"

    @property
    def checkpoints_folder(self) -> Path:
        return self.folder / CHECKPOINTS

    @property
    def metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    def environment(self) -> dict[str, Any]:
        """Return the content of ``environment.json``. Raises RunError."""
        return read_json_object(self.folder / ENVIRONMENT, RunError, _ADVICE)

    def checkpoint_names(self) -> list[str]:
        """Return the names that :meth:`checkpoint` accepts: ``last``, ``best``, ``average`` and steps, if present."""
        folder = self.checkpoints_folder
        targets = {name: _read_pointer(folder / name) for name in POINTERS}
        names = [name for name, target in targets.items() if target and (folder / target).is_dir()]
        if (folder / AVERAGE).is_dir():
            names.append(AVERAGE)
        return names + [step_name(step) for step in saved_steps(folder)]

    def auto_checkpoint(self) -> str:
        """Return the name that ``auto`` means: the average if the recipe has one, else ``best``, else ``last``."""
        names = self.checkpoint_names()
        if self.recipe.training.average and AVERAGE in names:
            return AVERAGE
        return "best" if "best" in names else "last"

    def checkpoint(self, name: str = "best") -> Path:
        """Return the folder of a checkpoint: ``auto``, ``best``, ``last``, ``average``, ``step-000200`` or ``200``.

        Raises RunError, which lists the existing checkpoints, if it does not exist.
        """
        if name == AUTO:
            name = self.auto_checkpoint()
        folder = self.checkpoints_folder
        target = (_read_pointer(folder / name) or "") if name in POINTERS else folder_name(name)
        if (target == AVERAGE or step_of(target) is not None) and (folder / target).is_dir():
            return folder / target
        names = self.checkpoint_names()
        if names:
            raise RunError(
                f"{self.folder} has no checkpoint {name!r}{nearest(name, names)}: it has {', '.join(names)}: "
                f"use checkpoint {names[0]}"
            )
        reason = read_failure(self.folder)
        if reason:
            raise RunError(f"{self.folder} has no checkpoint, because the training failed: {reason}")
        raise RunError(f"{self.folder} has no checkpoint yet, continue its training with: {self.resume_command}")

    def chosen(self, name: str) -> str:
        """Return the folder name of a checkpoint, with a note if ``auto`` is not the one that the recipe asks for."""
        folder = self.checkpoint(name)
        if name == AUTO and self.auto_checkpoint() == "last":
            note(f"{self.folder} has no best checkpoint: last is taken, {folder.name}")
        elif name == AUTO and folder.name != AVERAGE and self.recipe.training.average:
            note(f"{self.folder} is not trained to the end and has no average yet: best is taken, {folder.name}")
        return folder.name

    def weights(self, checkpoint: str = "best") -> Weights:
        folder = self.checkpoint(checkpoint)
        read_manifest(folder)  # raises RunError if it is missing or damaged
        return Weights(folder.name, sha256(folder / MANIFEST))

    def set_pointer(self, name: str, step: int | None) -> None:
        """Make ``last`` or ``best`` name the checkpoint of a step, or remove the pointer if the step is None."""
        path = self.checkpoints_folder / name
        if step is None:
            with writing(path):
                path.unlink(missing_ok=True)
        elif _read_pointer(path) != step_name(step):
            write_atomic(path, step_name(step) + "\n")

    @property
    def resume_command(self) -> str:
        """The command that continues this run, quoted for a shell."""
        return shlex.join(["phmctl", "train", str(self.folder), "--resume"])

    def claimed(self) -> AbstractContextManager[None]:
        """Prevent other processes from training this run. Raises RunError if another process trains it."""
        busy = RunError(
            f"another process is training {self.folder}: wait for it or stop it, or leave resume out to start a new run"
        )
        return lock(self.folder / LOCK, busy=busy)

    def read_model(self, checkpoint: str) -> tuple[Path, dict[str, "Tensor"]]:
        """Return a checkpoint's folder and the model's tensors by name. Raises RunError."""
        folder = self.checkpoint(checkpoint)
        self.check_model(folder)
        return folder, read_checkpoint(folder, ("model",)).tensors["model"]

    def check_model(self, checkpoint: Path) -> None:
        """Raise RunError if a checkpoint was trained with another model section than the recipe's."""
        trained, section = read_manifest(checkpoint)["model"], self.recipe.model.model_dump(mode="json")
        for key, (before, now) in differences(trained, section).items():
            place = f"{checkpoint} was trained with model.{key} = {before!r}"
            raise RunError(f"{place}, but {self.folder / RECIPE} has {now!r}: {_ADVICE}")

    @contextmanager
    def attempted(self) -> Iterator[None]:
        """Remove the error of an earlier training from the run, and write the error of this block if it fails."""
        with suppress(OSError):
            (self.folder / FAILURE).unlink(missing_ok=True)
        try:
            yield
        except Exception as error:
            with suppress(OSError, OutputError):
                if self.folder.is_dir():  # otherwise writing would create it again
                    write_json(self.folder / FAILURE, {"error": str(error).split("\n")[0] or type(error).__name__})
            raise


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write the recipe of a run."""
    write_atomic(folder / RECIPE, dump_recipe(recipe))


def read_recipe(path: Path) -> Recipe:
    """Return the recipe of a run. Raises RunError if it is invalid."""
    try:
        return validate_recipe(read_document(path, RecipeError))
    except RecipeError as error:
        place = "" if str(error).startswith(str(path)) else f"{path} cannot be used: "
        raise RunError(f"{place}{error}\n{_ADVICE}") from error


def _read_pointer(path: Path) -> str | None:
    """Return the only line of a pointer file, or None if the file is damaged or missing."""
    try:
        first, *following = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return None
    return first.strip() if first and not any(following) else None


def describe_environment(recipe: Recipe) -> dict[str, object]:
    """Return versions, platform, seed, git revision and time, for ``environment.json``."""
    return {
        "phmctl": __version__,
        "git": git_revision(),
        "python": platform.python_version(),
        "libraries": {name: importlib.metadata.version(name) for name in _LIBRARIES},
        "platform": platform.platform(),
        "processor": processor_name(),
        "processors": os.cpu_count(),
        "seed": recipe.training.seed,
        "precision": recipe.training.precision,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def git_revision() -> str | None:
    """Return the commit of the checkout that contains phmctl (with ``-dirty`` if it has changes), or None."""
    checkout = Path(__file__).resolve().parent.parent.parent
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
    if (checkout / ".git").exists():
        with suppress(OSError, subprocess.TimeoutExpired):
            completed = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
            return completed.stdout.strip() or None
    return None


# ------------------------------------------------------------------------------------ runs by path, name or tag


def runs_root(folder: str | Path | None = None) -> Path:
    """Return the folder of runs: `folder`, otherwise ``$PHMCTL_RUNS``, otherwise ``runs``."""
    return Path(folder or os.environ.get("PHMCTL_RUNS") or "runs")


def find_run(name: Path | str, root: str | Path | None = None) -> Path:
    """Return the folder of the run with a path, a name below `root`, or a tag. Raises RunError.

    Of several versions of a variant the newest with a checkpoint is returned, and a note says so.
    """
    if not isinstance(name, str | Path) or not str(name):
        raise UserError(f"a run is named by the folder (after a training: result.run.folder), not by {name!r}")
    root = runs_root(root)
    for folder in (Path(name), root / name):
        if (folder / RECIPE).exists() or (_VERSION.fullmatch(folder.name) and folder.is_dir()):
            return folder
    runs = select_runs([name], root)
    variants = sorted({run.parent for run in runs})
    if len(variants) > 1:
        raise RunError(f"{name} means {len(variants)} variants: name one: {', '.join(map(str, variants))}")
    runs = [run for run in runs if _VERSION.fullmatch(run.name)] or runs  # v001.bak is a copy
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
            for folder in folders:
                _refuse_export(folder)
            raise RunError(
                f"no run at {name} or below {root} (runs or PHMCTL_RUNS): no {RECIPE}, and no tag"
                f"{_nearest_run(Path(name), root)}; phmctl runs lists them"
            )
        runs += matching
    unique = {run.resolve(): run for run in runs}
    return sorted(unique.values(), key=_natural_order)


def _refuse_export(folder: Path) -> None:
    if (folder / EXPORT).is_file():
        raise RunError(
            f"{folder} is an export, not a run: name the run that it was made from. decode, eval and serve accept "
            f"exports: {shlex.join(['phmctl', 'eval', str(folder)])}"
        )


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
            with suppress(OSError):  # a folder that may not be read hides no other
                if path.is_dir() and not path.name.startswith("."):
                    yield from _runs_below(path, depth - 1)


def _nearest_run(path: Path, root: Path) -> str:
    """Return the clause that suggests the run whose name or tag is most similar, or an empty string."""
    name = str(path.relative_to(root) if path.is_relative_to(root) else path)
    runs = list(root.glob("*/*/v*"))
    folders = [*sorted({run.parent for run in runs}), *runs]
    return nearest(name, [*(str(folder.relative_to(root)) for folder in folders), *filter(None, map(read_tag, runs))])


def check_tag(tag: str | None) -> None:
    """Raise UserError unless a tag is a plain name. It can be given instead of a path."""
    if tag is not None and not _TAG.fullmatch(tag):
        raise UserError(f"tag={tag}: use at most 64 letters, digits, '.', '_', '+' and '-'")


def read_tag(run: Path) -> str | None:
    """Return the tag of a run (``train --tag``), or None."""
    return _read_text(run / ENVIRONMENT, "tag")


def read_failure(run: Path) -> str | None:
    """Return the error of a run's last training, or None if it did not fail."""
    return _read_text(run / FAILURE, "error")


def _read_text(path: Path, key: str) -> str | None:
    """Return the text of a key in a JSON file, or None if the file is damaged or missing, or lacks the key."""
    if path.is_file():
        with suppress(RunError):
            value: str | None = read_json_object(path, RunError, "").get(key)
            return value
    return None
