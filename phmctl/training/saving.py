"""What a training keeps on disk: its checkpoints, all that follows from them, and their average.

``last`` and ``best`` say nothing that the checkpoints do not: the newest whole one, and the one that its state calls
the best. So they are derived, after every save and whenever a run is continued, and so is what may be pruned. A kill
anywhere leaves at worst pointers that are behind, and the next start moves them.
"""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from phmctl.checkpoints import (
    AVERAGE,
    MOMENTS,
    drop_group,
    prune,
    read_checkpoint,
    read_state,
    step_name,
    tidy,
    whole_steps,
    write_checkpoint,
)
from phmctl.files import discard, sweep, writing
from phmctl.recipe.schema import TrainingSection
from phmctl.runs import Run
from phmctl.training.state import TrainingState


def newest_state(folder: Path) -> TrainingState | None:
    """Return the state of the newest whole checkpoint; None where there is none. Raises RunError if it is damaged."""
    whole = whole_steps(folder)
    if not whole:
        return None
    newest = folder / step_name(whole[-1])
    return TrainingState.from_json(read_state(newest), newest)


def scheduled_steps(folder: Path, save_every: int, final: int | None) -> list[int]:
    """Return the whole steps that belong to the interval (and the final one), ascending.

    Those that only an interruption or a new best wrote are not among them, so what is kept and averaged does not
    depend on interruptions.
    """
    return [step for step in whole_steps(folder) if step % save_every == 0 or step == final]


def derive(run: Run, settings: TrainingSection) -> None:
    """Let ``last`` and ``best`` name what they must, and remove what is not kept.

    Raises:
        OutputError: the folder cannot be written.
    """
    folder = run.checkpoints_folder
    state = newest_state(folder)
    if state is None:
        return
    best = state.best_step if state.best_step in whole_steps(folder) else None
    run.point("last", state.step)
    run.point("best", best)
    final = state.step if state.finished(settings.steps, settings.patience) else None
    scheduled = scheduled_steps(folder, settings.save_every, final)
    to_resume = {state.step, *scheduled[-settings.keep :], *([] if best is None else [best])}
    to_average = scheduled[-settings.average :] if settings.average else []
    prune(folder, to_resume.union(to_average))
    with writing(folder):
        for step in set(to_average) - to_resume:  # an average wants no moments
            drop_group(folder / step_name(step), MOMENTS)


def clear_leftovers(run: Run) -> None:
    """Remove or put back what killed processes left in a run; for the process that trains it.

    Raises:
        OutputError: the folder cannot be written.
    """
    with writing(run.folder):
        tidy(run.checkpoints_folder)
        for folder in (run.folder, run.results_folder):
            sweep(folder)


# ------------------------------------------------------------------- the average (Vaswani et al. 2017, §6.1)


def average_checkpoints(folder: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """Average the models of some steps, write the checkpoint ``average`` and return its tensors.

    Sums are float64; tensors of integers are those of the newest step.

    Args:
        folder: the run's checkpoints.
        steps: which, ascending; at least one.

    Raises:
        RunError: a checkpoint is missing or damaged.
        OutputError: the folder cannot be written.
    """
    sums: dict[str, Tensor] = {}
    newest: dict[str, Tensor] = {}
    for step in steps:
        newest = read_checkpoint(folder / step_name(step), ["model"]).tensors["model"]
        for name, tensor in newest.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor if name in sums else tensor.to(torch.float64)
    means = {name: (sums[name] / len(steps)).to(t.dtype) if name in sums else t for name, t in newest.items()}
    write_checkpoint(folder / AVERAGE, {"model": means}, {"steps": list(steps)})
    return means


def averaged_steps(folder: Path) -> list[int]:
    """Return the steps that ``average`` was made of, or an empty list.

    Raises:
        RunError: it is damaged.
    """
    if not (folder / AVERAGE).is_dir():
        return []
    return list(read_checkpoint(folder / AVERAGE, []).state["steps"])


def discard_average(folder: Path) -> None:
    """Remove ``average``, if it is there: training goes on from here, so it will be made of other steps.

    Raises:
        OutputError: it cannot be removed.
    """
    with writing(folder):
        if (folder / AVERAGE).is_dir():
            discard(folder / AVERAGE)
