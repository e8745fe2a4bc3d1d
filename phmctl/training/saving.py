"""What a training keeps on disk: its checkpoints first, then all that follows from them.

``last`` and ``best`` say nothing that the checkpoints do not: the newest whole one, and the one that its state calls
the best. So they are derived, after every save and whenever a run is taken up again, and so is what may be pruned. A
kill anywhere leaves at worst pointers that are behind, and the next start moves them.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from phmctl.checkpoints import (
    MOMENTS,
    amend_state,
    drop_group,
    prune,
    read_state,
    step_name,
    tidy,
    whole_steps,
    write_checkpoint,
)
from phmctl.files import sweep, writing
from phmctl.recipe.schema import TrainingSection
from phmctl.runs import Run
from phmctl.training.state import TrainingState

if TYPE_CHECKING:
    from phmctl.training.wrapping import Gathering


def save_checkpoint(
    run: Run, state: TrainingState, gathering: "Gathering", settings: TrainingSection, *, standing: bool
) -> None:
    """Write the checkpoint of a step, then settle the run.

    Args:
        run: where to.
        state: of the step.
        gathering: puts together model and optimiser; a tensor is held at a time.
        settings: the recipe's training section.
        standing: the same tensors stand there already: only the state is written.

    Raises:
        OutputError: the folder cannot be written.
    """
    folder = run.checkpoints_folder / step_name(state.step)
    if standing:
        amend_state(folder, state.as_json())
    else:
        write_checkpoint(folder, gathering.groups, state.as_json(), gathering.take)
    settle(run, settings)


def settle(run: Run, settings: TrainingSection) -> None:
    """Let ``last`` and ``best`` name what they must, and remove the checkpoints that are not kept.

    Raises:
        OutputError: the folder cannot be written.
    """
    folder = run.checkpoints_folder
    state = newest_state(folder)
    if state is None:
        return
    whole = whole_steps(folder)
    best = state.best_step if state.best_step in whole else None
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


def clear_leftovers(run: Run) -> None:
    """Remove or put back what killed processes left in a run; for the process that trains it.

    Raises:
        OutputError: the folder cannot be written.
    """
    with writing(run.folder):
        tidy(run.checkpoints_folder)
        for folder in (run.folder, run.results_folder):
            sweep(folder)
