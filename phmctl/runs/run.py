"""Run directories: everything of one training in one folder, which can be moved to another machine.

::

    runs/<recipe>/<variant>/v001/
        recipe.yaml        the resolved recipe
        data.json          the manifest of the training data: settings, sources with SHA-256, counts
        environment.json   versions, seed, device, threads, git revision
        tokenizer/         the tokenizers
        text/              valid and test text, cased: valid.source, valid.target, test.source, test.target
        metrics.jsonl      one line per logged interval or validation
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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeVar

from phmctl.console import note
from phmctl.devices import processor_name
from phmctl.errors import OutputError, RecipeError, RunError, nearest
from phmctl.recipe.documents import read_document
from phmctl.recipe.loading import differences, dump_recipe, validate_recipe
from phmctl.recipe.schema import Recipe
from phmctl.runs.find import (
    ATTEMPT,
    AUTO,
    CHECKPOINTS,
    DATA,
    ENVIRONMENT,
    EXPORT,
    LOCK,
    POINTERS,
    RECIPE,
    find_run,
    read_failure,
    select_runs,
)
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
    verify_checkpoint,
    write_atomic,
    write_json,
    writing,
)
from phmctl.version import __version__

if TYPE_CHECKING:
    from torch import Tensor

RecipeType = TypeVar("RecipeType", bound=Recipe)
Loaded = TypeVar("Loaded")
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

    @property
    def results_folder(self) -> Path:
        return self.folder / "results"

    def data(self) -> dict[str, Any]:
        """Return the content of ``data.json``, the manifest of the training data. Raises RunError."""
        return read_json_object(self.folder / DATA, RunError, _ADVICE)

    def splits(self) -> list[str]:
        """Return the splits whose text is in the folder."""
        return sorted({path.stem for path in self.text_folder.glob("*.*")})


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
        with writing(parent):
            parent.mkdir(parents=True, exist_ok=True)
        with writing(parent), sole_writer(parent / "new"), temporary_folder(parent / "new") as temporary:
            if fill is not None:
                fill(cls(temporary, recipe))
            for name in (CHECKPOINTS, "results"):
                (temporary / name).mkdir()
            write_json(temporary / ENVIRONMENT, describe_environment(recipe) | dict(environment or {}))
            write_recipe(temporary, recipe)
            versions = (re.fullmatch(r"v(\d{3,})", path.name) for path in parent.iterdir())
            number = 1 + max((int(match[1]) for match in versions if match), default=0)
            folder = temporary.rename(parent / f"v{number:03d}")
            sync(parent)
            return cls(folder, recipe)

    @classmethod
    def open(cls, name: Path | str, root: str | Path | None = None) -> Self:
        """Open the run with a path, a name below `root` or a tag. See :func:`phmctl.runs.find.find_run`."""
        folder = find_run(name, root)
        if (folder / EXPORT).is_file():
            raise RunError(
                f"{folder} is an export, not a run: decode, eval and serve accept it, "
                "for training and exporting, name the run that it was made from"
            )
        for file_name in (RECIPE, ENVIRONMENT):
            if not (folder / file_name).is_file():
                raise RunError(f"{folder} is incomplete: {file_name} is missing: {_ADVICE}")
        return cls(folder, read_recipe(folder / RECIPE))

    @classmethod
    def trained_with(cls, root: Path, recipe: Recipe, except_keys: Collection[str]) -> Iterator[Self]:
        """Yield the runs below `root` whose training had a recipe's values except for some keys, newest first.

        A run is known by the recipe that it recorded when the training began: the folder may be renamed, and
        ``recipe.yaml`` edited. Raises RunError if the ``recipe.yaml`` of such a run cannot be read. Of other runs notes
        name those that cannot be read.
        """
        wanted = recipe.model_dump(mode="json")
        found: list[tuple[str, int, Path]] = []
        for folder in select_runs(root=root):
            try:
                environment = read_environment(folder)
                trained = environment.get("recipe") or read_recipe(folder / RECIPE).model_dump(mode="json")
            except RunError as error:
                note(f"skipped: {error}")
                continue
            if differences(trained, wanted).keys() <= {*except_keys}:
                found.append((str(environment.get("started")), len(found), folder))
        for *_, folder in sorted(found, reverse=True):
            yield cls.open(folder)

    def trained_recipe(self) -> Mapping[str, object]:
        """Return the recipe that the newest training of this run recorded, in the types of JSON."""
        return self.environment().get("recipe") or self.recipe.model_dump(mode="json")

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
        return read_environment(self.folder)

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
        is_pointer = name in POINTERS and (folder / name).is_file()
        target = _read_pointer(folder / name) if is_pointer else folder_name(name)
        if target is not None:
            is_checkpoint_name = target == AVERAGE or step_of(target) is not None
            if is_checkpoint_name and (folder / target).is_dir():
                return folder / target
        names = self.checkpoint_names()
        existing = [checkpoint for checkpoint in names if checkpoint not in POINTERS]
        if not existing:
            reason = read_failure(self.folder)
            because = f", because the training failed: {reason}" if reason is not None else " yet"
            advice = "" if reason is not None else f", continue its training with: {self.resume_command}"
            raise RunError(f"{self.folder} has no checkpoint{because}{advice}")
        if is_pointer:
            problem = "is damaged" if target is None else f"names {target!r}, which does not exist"
            raise RunError(f"{folder / name} {problem}: use another: --checkpoint {' or '.join(existing)}")
        raise RunError(
            f"{self.folder} has no checkpoint {name!r}{nearest(name, names)}: it has {', '.join(names)}: "
            f"use --checkpoint {names[0]}"
        )

    def load_checkpoint(self, name: str, load: Callable[[str], Loaded]) -> Loaded:
        """Call `load` with the folder name of the checkpoint `name` and return the result.

        If a training prunes the folder while it is read, `name` is looked up again, because ``last`` and ``best`` may
        name a newer checkpoint by then. A note says if ``auto`` is not the checkpoint that the recipe asks for.
        """
        folder = self.checkpoint(name)
        if name == AUTO and self.auto_checkpoint() == "last":
            note(f"{self.folder} has no best checkpoint: last is taken, {folder.name}")
        elif name == AUTO and folder.name != AVERAGE and self.recipe.training.average:
            note(f"{self.folder} is not trained to the end and has no average yet: best is taken, {folder.name}")
        while True:
            try:
                return load(folder.name)
            except (RunError, FileNotFoundError):
                if folder.is_dir():
                    raise
                newer = self.checkpoint(name)
                if newer == folder:
                    raise
                folder = newer

    def weights(self, checkpoint: str = "best") -> Weights:
        folder = self.checkpoint(checkpoint)
        if not (folder / MANIFEST).is_file():
            verify_checkpoint(folder, ())  # raises an error that suggests another checkpoint
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
            f"another process is training {self.folder}: wait for it or stop it, "
            "or leave --resume out to start a new run"
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
        """Keep a record in the run while it is trained, and the error if the training fails.

        A killed process leaves a record without an error. A record that cannot be written does not stop the training.
        """
        with suppress(OutputError):
            write_json(self.folder / ATTEMPT, {"started": datetime.now(UTC).isoformat(timespec="seconds")})
        failure = None
        try:
            yield
        except Exception as error:
            failure = str(error).split("\n")[0] or type(error).__name__
            raise
        finally:
            with suppress(OSError, OutputError):
                if failure is None:
                    (self.folder / ATTEMPT).unlink(missing_ok=True)
                elif self.folder.is_dir():  # otherwise writing would create it again
                    write_json(self.folder / ATTEMPT, {"error": failure})


def requested_splits(runs: Sequence[Trained], split: str) -> list[str]:
    """Return the splits to score for the ``--split`` option.

    ``all`` selects every test set of the runs. So does ``test`` if no run has a test set of that name.
    """
    tests = sorted({name for run in runs for name in run.splits() if name.partition("_")[0] == "test"})
    if split == "all" or (split == "test" and "test" not in tests):
        return tests or ["test"]
    return [split]


def read_environment(folder: Path) -> dict[str, Any]:
    """Return the content of a run's ``environment.json``. Raises RunError."""
    return read_json_object(folder / ENVIRONMENT, RunError, _ADVICE)


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
    """Return the recipe, versions, platform, git revision and time, for ``environment.json``."""
    libraries: dict[str, str | None] = dict.fromkeys(_LIBRARIES)
    for name in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            libraries[name] = importlib.metadata.version(name)
    return {
        "recipe": recipe.model_dump(mode="json"),
        "phmctl": __version__,
        "git": git_revision(),
        "python": platform.python_version(),
        "libraries": libraries,
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
