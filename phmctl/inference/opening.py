"""Open a run or an export: check the options, make the export that an engine needs, and load the model."""

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from phmctl import exports
from phmctl.console import note
from phmctl.decoding.model import Model
from phmctl.decoding.search import ENGINES, TORCH
from phmctl.errors import UserError, check_known
from phmctl.exports import CTRANSLATE2, EXACT, SAFETENSORS, Export, check_quantize
from phmctl.files import lock, writing
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import AUTO, Run, Weights
from phmctl.tasks.base import Report, check_options
from phmctl.tasks.registry import answering_kind, trained_kind

_VERIFIED_TEXTS = 64  # texts on which an export is compared with its run when an engine needs one


@dataclass(frozen=True)
class ModelOptions:
    """Options for opening a model that all tasks share, and the options of its task."""

    checkpoint: str = AUTO
    device: str = "auto"
    engine: str | None = None  # torch, ctranslate2 or onnx; None: torch for a run, the export's own for an export
    quantize: str | None = None  # CTranslate2's type
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
    kind = answering_kind(run.recipe)
    task_options = options.task_options()
    check_options(kind, kind.load_request, task_options)
    run = with_engine(run, options)
    if options.threads and engine_of(run) == TORCH:
        raise UserError("threads: torch's are the whole process's; call torch.set_num_threads, or set OMP_NUM_THREADS")
    lines = None if split is None else kind.split_lines(run, split)

    def load(checkpoint: str) -> Model:
        request = kind.load_request(
            run=run,
            checkpoint=checkpoint,
            device=options.device,
            cleaned=lines is not None,
            threads=options.threads,
            **task_options,
        )
        return kind.load(request)

    return OpenedModel(run, run.load_checkpoint(options.checkpoint, load), lines)


def evaluate(path: Path | str, split: str, options: ModelOptions) -> Report:
    """Score a run or an export on a split and write the scores into its folder.

    Raises:
        RunError: something is missing or damaged.
        UserError: the task or the engine lacks an option.
        OutputError: the scores cannot be written.
    """
    run = exports.open_run_or_export(path)
    kind = trained_kind(run.recipe, "eval")
    task_options = options.task_options()
    check_options(kind, kind.score_request, task_options)
    other_text = [name for name in ("source", "table") if name in task_options]
    if split != "test" and other_text:
        raise UserError(f"--split {split} scores the run's own text, --{other_text[0]} other text: leave one out")
    if "table" not in task_options:  # the scores of a table are not stored
        check_scorable(run)
    request = kind.score_request(
        run=with_engine(run, options),
        checkpoint=options.checkpoint,
        device=options.device,
        split=split,
        **task_options,
    )
    return kind.evaluate(request)


def check_scorable(run: Run) -> None:
    """Raise OutputError, before any work, if a run's scores cannot be written into it."""
    folder = run.results_folder if run.results_folder.exists() else run.folder
    with writing(folder):
        tempfile.TemporaryFile(dir=folder).close()


def with_engine(run: Run, options: ModelOptions) -> Run:
    """Return the run itself for torch, else its export for the engine.

    The export is made once, in the run's folder ``exports/``, and again when the checkpoint has changed. CTranslate2's
    model of an export to safetensors is made in memory.
    """
    if options.engine is None and options.quantize is None:
        return run
    engine = options.engine or engine_of(run)
    check_known("engine", engine, ENGINES)
    if isinstance(run, Export):
        takes_ctranslate2 = run.to == SAFETENSORS and isinstance(run.recipe, TranslationRecipe)
        if takes_ctranslate2 and engine == CTRANSLATE2:
            _, in_memory = _exporting()
            return in_memory(run, options.quantize or EXACT)
        if engine != run.engine or options.quantize not in (None, run.quantize):
            other = f" or {CTRANSLATE2}" if takes_ctranslate2 else ""
            raise UserError(
                f"{run.folder} is an export to {run.to}, for --engine {run.engine}{other}; leave --engine and "
                "--quantize out, or give the run itself"
            )
        return run
    check_quantize(engine, options.quantize)
    if engine == TORCH:
        return run
    if options.task.get("precision") is not None:
        raise UserError(f"--precision: only --engine torch has it, not {engine} (CTranslate2 has --quantize)")
    return _engine_export(run, engine, options)


def engine_of(run: Run) -> str:
    return run.engine if isinstance(run, Export) else TORCH


def _exporting() -> tuple[Callable[..., Any], Callable[[Export, str], Export]]:
    """Return the functions that export a run, and that make CTranslate2's model in memory. They import torch."""
    from phmctl.export.verb import export, in_memory

    return export, in_memory


def _engine_export(run: Run, engine: str, options: ModelOptions) -> Export:
    weights = run.weights(options.checkpoint)
    quantize = options.quantize or EXACT
    name = f"{engine}-{quantize}-{weights.name}"
    folder = run.folder / "exports" / name
    export = _valid_export(folder, weights)
    if export is None:
        with lock(folder.parent / f".{name}.lock", remove=True):
            export = _valid_export(folder, weights)  # another process may have made it meanwhile
            if export is None:
                note(f"exporting to {engine}; the export is kept in {folder}")
                export_run, _ = _exporting()
                made = export_run(
                    run,
                    engine,
                    folder,
                    checkpoint=options.checkpoint,
                    quantize=options.quantize,
                    force=True,
                    texts=_VERIFIED_TEXTS,
                )
                export = made.export
    return replace(export, checkpoint_alias=options.checkpoint)


def _valid_export(folder: Path, weights: Weights) -> Export | None:
    """Return the export in a folder if it is whole and was made of these weights."""
    try:
        export = Export.open(folder)
        export.verify()
    except UserError:
        return None
    return export if export.manifest["checkpoint_sha256"] == weights.sha256 else None
