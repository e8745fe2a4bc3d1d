"""What a training keeps on disk: its state, its checkpoints, all that follows from them, and their average.

``last`` and ``best`` say nothing that the checkpoints do not: the newest whole one, and the one that its state calls
the best. So they are derived, after every save and whenever a run is continued, and so is what may be pruned. A kill
anywhere leaves at worst pointers that are behind, and the next start moves them.
"""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from phmctl.checkpoints import (
    AVERAGE,
    prune,
    read_checkpoint,
    read_state,
    step_name,
    whole_steps,
    write_checkpoint,
)
from phmctl.data.batches import ORDER
from phmctl.errors import RunError
from phmctl.files import clear, sweep, writing
from phmctl.recipe.schema import TrainingSection
from phmctl.runs import Run
from phmctl.runs.summary import is_done

_Count = Annotated[int, Field(ge=0)]


class TrainingState(BaseModel):
    """Counters of a training. No clock time is among them: equal trainings have equal checkpoints."""

    model_config = ConfigDict(strict=True, extra="ignore")

    step: _Count = 0  # optimiser steps done
    epoch: _Count = 0  # of the next batch
    position: _Count = 0  # batches of that epoch already used
    validated: _Count = 0  # step of the newest validation
    best_score: float | None = None  # higher is better
    best_loss: float | None = None  # validation loss of the best one
    best_step: _Count | None = None
    stale: _Count = 0  # validations since the best one
    target_tokens: _Count = 0  # all that were trained on
    # since the newest log line
    window_loss: float = 0.0  # summed
    window_target_tokens: _Count = 0
    order: _Count = ORDER  # which way to order batches `position` counts in

    @classmethod
    def from_json(cls, values: dict[str, Any], where: Path) -> Self:
        """Return the state that ``model_dump`` described, of the checkpoint `where`; other keys are ignored.

        Raises:
            RunError: a counter is missing or of another kind, or batches came in another order.
        """
        try:
            state = cls.model_validate(values)
        except ValidationError as error:
            raise RunError(
                f"{where} cannot be continued from: state.json has another {error.errors()[0]['loc'][0]}"
            ) from None
        if values.get("order") != ORDER:
            raise RunError(f"{where} is of a version before 0.1.0: decode it, or train anew")
        return state

    def note_score(self, score: float, loss: float, least_score: float = -math.inf) -> bool:
        """Count a validation; return whether it is the best so far: by its score, by its loss where scores are equal.

        Scores below `least_score` count as equal. NaN is never the best.
        """
        self.validated = self.step
        best, least = self.best_score, math.inf if self.best_loss is None else self.best_loss
        improved = not math.isnan(score) and (
            best is None or (max(score, least_score), -loss) > (max(best, least_score), -least)
        )
        self.stale = 0 if improved else self.stale + 1
        if improved:
            self.best_score, self.best_loss, self.best_step = score, loss, self.step
        return improved


def scheduled_steps(folder: Path, save_every: int, final: int | None) -> list[int]:
    """Return the whole steps that belong to the interval (and the final one), ascending.

    Those that only an interruption or a new best wrote are not among them, so what is kept and averaged does not
    depend on interruptions.
    """
    return [step for step in whole_steps(folder) if step % save_every == 0 or step == final]


def derive(run: Run, settings: TrainingSection) -> None:
    """Let ``last`` and ``best`` name what they must, and remove what is not kept. Raises OutputError."""
    folder = run.checkpoints_folder
    whole = whole_steps(folder)
    if not whole:
        return
    newest = folder / step_name(whole[-1])
    state = TrainingState.from_json(read_state(newest), newest)
    best = state.best_step if state.best_step in whole else None
    run.point("last", state.step)
    run.point("best", best)
    final = state.step if is_done(state.step, state.stale, settings.steps, settings.patience) else None
    scheduled = scheduled_steps(folder, settings.save_every, final)
    newest_kept = scheduled[-max(settings.keep, settings.average) :]
    prune(folder, {state.step, *newest_kept, *([] if best is None else [best])})


def clear_leftovers(run: Run) -> None:
    """Remove or put back what killed processes left in a run; for the process that trains it. Raises OutputError."""
    with writing(run.folder):
        clear(run.checkpoints_folder / "*")
        for folder in (run.folder, run.results_folder):
            sweep(folder)


# ------------------------------------------------------------------- the average (Vaswani et al. 2017, §6.1)


def average_checkpoints(folder: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """Average the models of some steps, ascending, write the checkpoint ``average`` and return its tensors.

    Sums are float64; tensors of integers are those of the newest step. Raises RunError and OutputError.
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
    """Return the steps that ``average`` was made of, or an empty list. RunError: it is damaged."""
    if not (folder / AVERAGE).is_dir():
        return []
    return list(read_checkpoint(folder / AVERAGE, []).state["steps"])
