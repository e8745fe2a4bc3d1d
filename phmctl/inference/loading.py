"""From a folder to a model that a program can ask."""

from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from phmctl.console import silence
from phmctl.errors import UserError
from phmctl.inference.model import Model
from phmctl.runs import Run

# A task's name, and the function that loads a run of it: (run, checkpoint, device).
_TASKS = {
    "translation": "phmctl.inference.translation:load_run",
    "classification": "phmctl.inference.classification:load_run",
}


def load(
    path: str | Path,
    *,
    checkpoint: str | None = None,
    device: str = "auto",
    engine: str | None = None,
    threads: int | None = None,
) -> Model:
    """Load a trained model, ready to translate, to score, to classify or to encode texts.

    Nothing is printed and nothing global is changed: no random numbers are drawn, no threads are set, no signal is
    taken, nothing is written. The model may be used by many threads at once.

    Args:
        path: a run's folder wherever it was copied, a folder of versions (the newest with a checkpoint is taken), or a
            name below ``$PHMCTL_RUNS`` or ``runs``.
        checkpoint: ``best`` (the default), ``last``, ``average``, ``step-000200`` or ``200``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        engine: what computes; None is torch for a run.
        threads: CPU threads of an engine that has its own. torch's are the whole process's: set them yourself, by
            ``torch.set_num_threads``.

    Raises:
        RunError: there is no run (the message names the nearest), or something of it is missing or damaged.
        RecipeError: there is no such device here.
        UserError: the run's task answers no text, the engine is not known, or threads are wanted of torch.
    """
    if engine not in (None, "torch"):
        raise UserError(f"engine {engine!r}: a run has torch")
    if threads:
        raise UserError(
            "threads: torch's threads are the whole process's, which load() leaves alone; "
            "call torch.set_num_threads, or set OMP_NUM_THREADS"
        )
    with silence():
        run = Run.open(path)
        return _loader(run)(run, checkpoint or "best", device)


def _loader(run: Run) -> Callable[[Run, str, str], Model]:
    task = run.recipe.task
    if task not in _TASKS:
        raise UserError(f"{run.folder} is a run of task {task!r}, which answers no text; there are {', '.join(_TASKS)}")
    module, _, name = _TASKS[task].partition(":")
    loader: Callable[[Run, str, str], Model] = getattr(import_module(module), name)
    return loader
