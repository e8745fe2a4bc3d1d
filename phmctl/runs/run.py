"""Run directories: everything of one training in one folder that can be moved to another machine.

::

    runs/<recipe>/<variant>/v001/
        recipe.yaml        the resolved recipe
        data.json          what it was trained on; SHA-256 of tokenizer/ and text/
        environment.json   versions, seed, device, threads, git revision
        tokenizer/         how text becomes tokens
        text/              valid and test text, cased: valid.source, valid.target, test.source, test.target
        metrics.jsonl      one line a log interval or validation
        checkpoints/       step-000200/ …, average/, and the text files `last` and `best` that name one
        results/           what eval and decode write
"""

import importlib.metadata
import json
import os
import platform
import shlex
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from phmctl import __version__
from phmctl.checkpoints import (
    AVERAGE,
    MANIFEST,
    folder_name,
    read_state,
    saved_steps,
    step_name,
    step_of,
    verify_checkpoint,
)
from phmctl.console import note
from phmctl.devices import processor_name
from phmctl.errors import LockedError, OutputError, RecipeError, RunError, StoppedError, nearest
from phmctl.files import (
    lock,
    read_json_object,
    refuse_pipes,
    remove_abandoned,
    sha256,
    sha256_text,
    temporary_folder,
    write_atomic,
    write_json,
    writing,
)
from phmctl.recipe.documents import read_document
from phmctl.recipe.loading import dump_recipe, validate_recipe
from phmctl.recipe.schema import RECIPES, Recipe
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
    RECIPE_JSON,
    claim_version,
    find_run,
    note_once,
    versions_in,
)

Kind = TypeVar("Kind", bound=Recipe)
Loaded = TypeVar("Loaded")
_CLAIM_SECONDS = 0.5  # listing runs takes the lock for a moment
_AGAIN = "copy the run again, or train anew"
_LIBRARIES = ("torch", "tokenizers", "datasets", "sacrebleu", "safetensors", "numpy")


@dataclass(frozen=True)
class Weights:
    """What tells the weights of one checkpoint from others."""

    name: str  # the checkpoint's
    sha256: str  # of the manifest that holds the SHA-256 of each of its files


@dataclass(frozen=True)
class Run:
    """One training's folder and its resolved recipe."""

    folder: Path
    recipe: Recipe

    @classmethod
    def create(
        cls,
        root: Path,
        recipe: Recipe,
        *,
        environment: Mapping[str, Any] | None = None,
        fill: Callable[[Self], None] | None = None,
    ) -> Self:
        """Make a new version folder ``<root>/<recipe.name>/<recipe.variant>/vNNN``; none is ever overwritten.

        `fill` writes what else belongs into it (tokenizer, text) before the folder gets its name: a run that exists is
        complete.
        """
        parent = root / recipe.name / recipe.variant
        with writing(parent):
            parent.mkdir(parents=True, exist_ok=True)
            remove_abandoned(parent / "new")
            with temporary_folder(parent / "new") as temporary:
                if fill is not None:
                    fill(cls(temporary, recipe))
                for name in (CHECKPOINTS, "results"):
                    (temporary / name).mkdir()
                write_json(temporary / ENVIRONMENT, describe_environment(recipe) | dict(environment or {}))
                write_recipe(temporary, recipe)
                return cls(claim_version(temporary, parent), recipe)

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open a run as :func:`~phmctl.runs.find.find_run` finds it."""
        folder = find_run(path)
        if (folder / EXPORT).is_file():
            raise RunError(
                f"{folder} is an export, not a run: decode, eval and serve take it; "
                "training and exporting want the run that it came from"
            )
        for name in (RECIPE, ENVIRONMENT):
            if not (folder / name).is_file():
                raise RunError(f"{folder} is no complete run: {name} is missing; {_AGAIN}")
        return cls(folder, read_recipe(folder / RECIPE))

    @classmethod
    def versions(cls, root: Path, recipe: Recipe) -> Iterator[Self]:
        """Yield the runs of the recipe's name and variant, the newest first, with a checkpoint or not.

        One that cannot be opened is left out, with a note.
        """
        for folder in reversed(versions_in(root / recipe.name / recipe.variant)):
            try:
                run = cls.open(folder)
            except RunError as error:
                note_once(f"left out: {error}")
            else:
                yield run

    @property
    def name(self) -> str:
        """``<recipe>/<variant>/vNNN``, wherever the folder lies; its own name stands for the version."""
        return f"{self.recipe.name}/{self.recipe.variant}/{self.folder.resolve().name}"

    def recipe_of(self, kind: type[Kind]) -> Kind:
        """The recipe; RunError where it is another task's."""
        if not isinstance(self.recipe, kind):
            wanted = kind.model_fields["task"].default
            raise RunError(f"{self.folder} is a run of task {self.recipe.task!r}, not {wanted!r}")
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

    @property
    def checkpoints_folder(self) -> Path:
        return self.folder / CHECKPOINTS

    @property
    def metrics_path(self) -> Path:
        return self.folder / "metrics.jsonl"

    def asked(self) -> Recipe:
        """The recipe as it was asked for: with ``training.minutes`` in place of the steps that they were."""
        with suppress(RunError):  # the environment is damaged
            noted, training = self.environment(), self.recipe.training
            if noted.get("minutes") and noted.get("steps", training.steps) == training.steps:  # else continued since
                length = {"steps": 0, "minutes": noted["minutes"]}
                return self.recipe.model_copy(update={"training": training.model_copy(update=length)})
        return self.recipe

    def splits(self) -> list[str]:
        """The splits of whose text the run keeps a copy."""
        return sorted({path.stem for path in self.text_folder.glob("*.*")})

    def checkpoint_names(self) -> list[str]:
        """What :meth:`checkpoint` takes: ``last``, ``best``, ``average`` where they exist, and steps."""
        folder = self.checkpoints_folder
        names = [name for name in POINTERS if (folder / name).is_file()]
        names += [AVERAGE] if (folder / AVERAGE).is_dir() else []
        return names + [step_name(step) for step in saved_steps(folder)]

    def choice(self) -> str:
        """Which checkpoint ``auto`` is: the average if asked for and made, else ``best``; first of all ``last``."""
        names = self.checkpoint_names()
        wanted = [AVERAGE, "best"] if self.recipe.training.average else ["best"]
        return next((name for name in wanted if name in names), "last")

    def checkpoint(self, name: str = "best") -> Path:
        """A checkpoint's folder, by ``auto``, ``best``, ``last``, ``average``, ``step-000200`` or plainly ``200``.

        RunError: there is none of this name; the message lists those that exist.
        """
        name = self.choice() if name == AUTO else name
        folder = self.checkpoints_folder
        pointer = name in POINTERS and (folder / name).is_file()
        target = _read_pointer(folder / name) if pointer else folder_name(name)
        if target is not None and (target == AVERAGE or step_of(target) is not None) and (folder / target).is_dir():
            return folder / target
        names = self.checkpoint_names()
        folders = [other for other in names if other not in POINTERS]
        if not folders:
            failed = None
            with suppress(RunError):
                failed = read_json_object(self.folder / ATTEMPT, RunError, "").get("error")
            if failed:
                raise RunError(f"{self.folder} has no checkpoint, for its training failed: {failed}")
            raise RunError(f"{self.folder} has no checkpoint yet; train it further with: {self.resume_command}")
        if pointer:
            wrong = "is damaged" if target is None else f"names {target!r}, which does not exist"
            raise RunError(f"{folder / name} {wrong}; use another: --checkpoint {' or '.join(folders)}")
        why = f" ({self._why_no_best()})" if name == "best" else nearest(name, names)
        raise RunError(
            f"{self.folder} has no checkpoint {name!r}{why}; it has {', '.join(names)}: use --checkpoint {names[0]}"
        )

    def use(self, name: str, read: Callable[[str], Loaded]) -> Loaded:
        """What `read` makes of a checkpoint, given the name of its folder, which `name` is followed to once.

        A training beside this process may prune the folder while it is read: then `name` is followed again. Where
        ``auto`` is not what the recipe asks for, that is said.
        """
        folder = self.checkpoint(name)
        taken = self.choice() if name == AUTO else ""
        if taken == "last":
            note(f"{self.folder} has no best checkpoint: {self._why_no_best()}; last is taken, {folder.name}")
        elif taken == "best" and self.recipe.training.average:
            why = "is not trained to its end, so there is no average yet"
            note(f"{self.folder} {why}; {taken} is taken, {folder.name}")
        while True:
            try:
                return read(folder.name)
            except (RunError, FileNotFoundError):
                if folder.is_dir():
                    raise
                before, folder = folder, self.checkpoint(name)
                if folder == before:
                    raise

    def _why_no_best(self) -> str:
        step = None
        with suppress(RunError):
            step = read_state(self.checkpoint("last")).get("best_step")
        return "no validation has chosen one yet" if step is None else f"that of step {step} is gone or damaged"

    def weights(self, name: str = "best") -> Weights:
        folder = self.checkpoint(name)
        if not (folder / MANIFEST).is_file():
            verify_checkpoint(folder, ())  # says what is missing and which checkpoint to use instead
        return Weights(folder.name, sha256(folder / MANIFEST))

    def point(self, name: str, step: int | None) -> None:
        """Let ``last`` or ``best`` name the checkpoint of a step; None removes it."""
        path = self.checkpoints_folder / name
        if step is None:
            with writing(path):
                path.unlink(missing_ok=True)
        elif _read_pointer(path) != step_name(step):
            write_atomic(path, step_name(step) + "\n")

    @property
    def resume_command(self) -> str:
        """The command that continues this run, quoted for a shell."""
        return shlex.join(["phmctl", "train", "--resume", str(self.folder)])

    @contextmanager
    def claimed(self) -> Iterator[None]:
        """Keep other processes from training this run while the block lasts; RunError where one does."""
        with ExitStack() as stack:
            try:
                stack.enter_context(lock(self.folder / LOCK, timeout=_CLAIM_SECONDS))
            except LockedError:
                raise RunError(
                    f"another process is training this run: {self.folder}; wait for it or stop it, "
                    "or leave --resume out to start a new run"
                ) from None
            yield

    @contextmanager
    def attempted(self) -> Iterator[None]:
        """Note in the run that it is being trained, and if that fails, why; nothing is left of what ends or is stopped.

        What is killed leaves a note that names no error. One that cannot be written is no reason to stop.
        """
        path = self.folder / ATTEMPT
        with suppress(OutputError):
            write_json(path, {"started": datetime.now(UTC).isoformat(timespec="seconds")})
        failed = None
        try:
            yield
        except Exception as error:
            failed = None if isinstance(error, StoppedError) else str(error).split("\n")[0] or type(error).__name__
            raise
        finally:  # a second signal too ends here: it was stopped
            with suppress(OSError, OutputError):
                path.unlink(missing_ok=True) if failed is None else write_json(path, {"error": failed})

    def environment(self) -> dict[str, Any]:
        return self._record(ENVIRONMENT, resumed=list)

    def data(self) -> dict[str, Any]:
        """What ``data.json`` holds: the manifest of the data that the run was trained on."""
        return self._record(DATA, settings=dict, splits=dict, sources=list, labels=list)

    def _record(self, name: str, **kinds: type) -> dict[str, Any]:
        value = read_json_object(self.folder / name, RunError, _AGAIN)
        for key, kind in kinds.items():
            if not isinstance(value.get(key, kind()), kind):
                raise RunError(f"{self.folder / name} is damaged: {key!r} is no {kind.__name__}; {_AGAIN}")
        return value


def splits_asked(runs: Sequence[Run], split: str) -> list[str]:
    """The splits that an option means: ``all`` is each test set, and so is ``test`` where no run has one so named."""
    tests = sorted({name for run in runs for name in run.splits() if name.partition("_")[0] == "test"})
    if split == "all" or (split == "test" and "test" not in tests):
        return tests or ["test"]
    return [split]


def write_recipe(folder: Path, recipe: Recipe) -> None:
    """Write a run's recipe, as YAML for people and as JSON, which is read fifty times as fast."""
    text = dump_recipe(recipe)
    write_json(folder / RECIPE_JSON, {"yaml_sha256": sha256_text([text]), "recipe": recipe.model_dump(mode="json")})
    write_atomic(folder / RECIPE, text)


def read_recipe(path: Path) -> Recipe:
    """Return a run's recipe, by what is JSON beside the YAML file where it is of the same text.

    Every key was written: one that is cut off would have defaults that nobody meant. RunError: the file is damaged, or
    something in its folder is no regular file.
    """
    refuse_pipes(path.parent, RunError)
    with suppress(OSError, ValueError, TypeError, LookupError, RecursionError):
        kept = json.loads((path.parent / RECIPE_JSON).read_bytes())
        if kept["yaml_sha256"] == sha256(path):
            return RECIPES[kept["recipe"]["task"]].model_validate_json(json.dumps(kept["recipe"]))
    try:
        document = read_document(path, RecipeError)
        recipe = validate_recipe(document)
    except RecipeError as error:
        where = "" if str(error).startswith(f"{path}") else f"{path} cannot be used: "
        raise RunError(f"{where}{error}\n{_AGAIN}") from error
    missing = [key for key in type(recipe).model_fields if key not in document.content]
    if missing or not path.read_bytes().endswith(b"\n"):
        lacks = f" before {missing[0]!r}" if missing else ""
        raise RunError(f"{path} is damaged: it is cut off{lacks}; {_AGAIN}")
    return recipe


def _read_pointer(path: Path) -> str | None:
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return None
    return lines[0].strip() if any(lines) and not any(lines[1:]) else None


def describe_environment(recipe: Recipe) -> dict[str, Any]:
    """Where and with what this process runs: versions, platform, seed, git revision, time."""
    libraries: dict[str, str | None] = dict.fromkeys(_LIBRARIES)
    for name in _LIBRARIES:
        with suppress(importlib.metadata.PackageNotFoundError):
            libraries[name] = importlib.metadata.version(name)
    return {
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
    """The commit of the checkout that phmctl is imported from (``-dirty`` when changed), or None."""
    checkout = Path(__file__).resolve().parent.parent.parent
    command = ["git", "-C", str(checkout), "describe", "--always", "--abbrev=40", "--dirty", "--exclude", "*"]
    if (checkout / ".git").exists():
        with suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=False)
            return done.stdout.strip() or None
    return None
