"""From a folder to a model that a program can ask."""

from pathlib import Path

from phmctl.console import silence
from phmctl.decoding.model import Model
from phmctl.decoding.translator import TORCH
from phmctl.errors import UserError
from phmctl.exports import Export, open_model
from phmctl.runs import AUTO
from phmctl.tasks.base import Asked
from phmctl.tasks.registry import kind_of


def load(
    path: str | Path,
    *,
    checkpoint: str | None = None,
    device: str = "auto",
    threads: int | None = None,
    precision: str | None = None,
) -> Model:
    """Load a trained model, ready to translate, to score, to classify or to encode texts.

    Nothing is printed and nothing global is changed: no random numbers are drawn, no threads are set, no signal is
    taken, nothing is written. The model may be used by many threads at once.

    Args:
        path: a run's folder wherever it was copied, a folder of versions (the newest with a checkpoint is taken), or a
            name below ``$PHMCTL_RUNS`` or ``runs``; or an export's folder.
        checkpoint: ``best``, ``last``, ``average``, ``step-000200`` or ``200``; by default the average if the recipe
            asks for one and it is made, else ``best``, before the first validation ``last``.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:1``.
        threads: CPU threads of an engine that has its own. torch's are the whole process's: set them yourself, by
            ``torch.set_num_threads``.
        precision: ``bfloat16`` keeps a run's weights in it where the device has it; ``float32`` does not. None is what
            the recipe says. A translator's.

    Raises:
        RunError: there is no run (the message names the nearest), or something of it is missing or damaged.
        RecipeError: there is no such device here.
        UserError: the run's task answers no text, threads are wanted of torch, or a precision
            of anything but a run's translator.
    """
    with silence():
        run = open_model(path)
        if threads and (run.engine if isinstance(run, Export) else TORCH) == TORCH:
            raise UserError(
                "threads: torch's are the whole process's; call torch.set_num_threads, or set OMP_NUM_THREADS"
            )
        kind, options = kind_of(run.recipe), {} if precision is None else {"precision": precision}
        kind.require("decode", options)
        return run.use(
            checkpoint or AUTO, lambda name: kind.load(Asked(run, name, device, options, threads=threads or 0))
        )
