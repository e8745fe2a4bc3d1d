"""Open a run or an export: check the options, and load the model."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from phmctl import exports
from phmctl.decoding.model import Model
from phmctl.decoding.search import TORCH
from phmctl.errors import UserError
from phmctl.exports import Export
from phmctl.runs import AUTO, Run
from phmctl.storage import writing
from phmctl.tasks import answers, trains
from phmctl.tasks.base import Report, check_options


@dataclass(frozen=True)
class ModelOptions:
    """Options for opening a model that all tasks share, and the options of its task."""

    checkpoint: str = AUTO
    device: str = "auto"
    threads: int = 0  # CPU threads of an engine that has its own; 0: the engine's default
    task: Mapping[str, Any] = field(default_factory=dict)  # options of the task; None: not set

    def task_options(self) -> dict[str, Any]:
        """Return the options of the task that are set."""
        return {name: value for name, value in self.task.items() if value is not None}


@dataclass(frozen=True)
class OpenedModel:
    """A loaded model and the run or export that it was loaded from."""

    run: Run
    model: Model
    lines: list[str] | None = None  # the split that was asked for, as lines for the model


def open_model(path: Path | str, options: ModelOptions | None = None, *, split: str | None = None) -> OpenedModel:
    """Load the model of a run or an export, ready to answer.

    With `split`, the model is loaded for that split of the run's own text, which is returned too: it was cleaned when
    the data was prepared, so the model does not clean it again.

    Raises:
        RunError: the run, the checkpoint or the split is missing or damaged.
        UserError: the task or the engine lacks an option.
        RecipeError: this machine lacks the device.
        MissingExtraError: the engine is not installed.
    """
    options = options or ModelOptions()
    run = exports.open_run_or_export(path)
    answering = answers(run.recipe)
    task_options = options.task_options()
    check_options(run.recipe.task, answering.options, task_options)
    if options.threads and engine_of(run) == TORCH:
        raise UserError("threads: torch's are the whole process's; call torch.set_num_threads, or set OMP_NUM_THREADS")
    lines = None if split is None else answering.split_lines(run, split)

    def load(checkpoint: str) -> Model:
        return answering.load(
            run, checkpoint, options.device, cleaned=lines is not None, threads=options.threads, **task_options
        )

    return OpenedModel(run, run.load_checkpoint(options.checkpoint, load), lines)


def evaluate(path: Path | str, split: str, options: ModelOptions) -> Report:
    """Score a run or an export on a split and write the scores into its folder.

    Raises:
        RunError: something is missing or damaged.
        UserError: the task or the engine lacks an option.
        OutputError: the scores cannot be written.
    """
    run = exports.open_run_or_export(path)
    scoring = trains(run.recipe, "eval")
    task_options = options.task_options()
    check_options(run.recipe.task, scoring.options, task_options)
    other_text = [name for name in ("source", "table") if name in task_options]
    if split != "test" and other_text:
        raise UserError(f"--split {split} scores the run's own text, --{other_text[0]} other text: leave one out")
    if "table" not in task_options:  # the scores of a table are not stored
        check_scorable(run)
    return scoring.evaluate(run, split, options.checkpoint, options.device, **task_options)


def check_scorable(run: Run) -> None:
    """Raise OutputError, before any work, if a run's scores cannot be written into it."""
    folder = run.results_folder if run.results_folder.exists() else run.folder
    with writing(folder):
        tempfile.TemporaryFile(dir=folder).close()


def engine_of(run: Run) -> str:
    return run.engine if isinstance(run, Export) else TORCH
