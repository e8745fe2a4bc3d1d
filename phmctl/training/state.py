"""What a checkpoint must know beside tensors, so that a resumed run is the uninterrupted one to the last bit."""

import math
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

from phmctl.data.order import ORDER
from phmctl.errors import RunError
from phmctl.runs.summary import is_done


@dataclass
class TrainingState:
    """Counters of a training. No clock time is among them: equal trainings have equal checkpoints."""

    step: int = 0  # optimiser steps done
    epoch: int = 0  # of the next batch
    position: int = 0  # batches of that epoch already used
    validated: int = 0  # step of the newest validation
    best_score: float | None = None  # higher is better
    best_loss: float | None = None  # validation loss of the best one
    best_step: int | None = None
    stale: int = 0  # validations since the best one
    target_tokens: int = 0  # all that were trained on
    # since the newest log line
    window_loss: float = 0.0  # summed
    window_target_tokens: int = 0
    order: int = ORDER  # which way to order batches `position` counts in

    def as_json(self) -> dict[str, Any]:
        """Return the fields as JSON values; floats keep every bit."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any], where: Path | None = None) -> Self:
        """Return the state that :meth:`as_json` described; other keys are ignored.

        Args:
            values: the JSON object.
            where: the checkpoint's folder, for the message.

        Raises:
            RunError: the step is missing, a value is of another kind or below zero, or batches came in another order.
        """
        where = where or Path("the checkpoint")
        known = {field.name: str(field.type) for field in fields(cls)}
        wrong = [name for name, kind in known.items() if name in values and not _fits(values[name], kind)]
        if "step" not in values or wrong:
            what = f"its {wrong[0]} is {values[wrong[0]]!r}" if wrong else "it has no step"
            raise RunError(f"{where} cannot be continued from: {what} in state.json")
        if values.get("order") != ORDER:
            raise RunError(
                f"{where} cannot be continued from: it is of a version before 0.1.0; decode it, or train anew"
            )
        return cls(**{key: value for key, value in values.items() if key in known})

    def finished(self, steps: int, patience: int) -> bool:
        """Return whether all `steps` are done, or so many validations in a row as `patience` says were no better."""
        return is_done(self.step, self.stale, steps, patience)

    def note_score(self, score: float, loss: float, floor: float = -math.inf) -> bool:
        """Count a validation; return whether it is the best so far: by its score, by its loss where scores are equal.

        Scores below `floor` count as equal. NaN is never the best.
        """
        self.validated = self.step
        best, least = self.best_score, math.inf if self.best_loss is None else self.best_loss
        improved = not math.isnan(score) and (best is None or (max(score, floor), -loss) > (max(best, floor), -least))
        self.stale = 0 if improved else self.stale + 1
        if improved:
            self.best_score, self.best_loss, self.best_step = score, loss, self.step
        return improved


def _fits(value: Any, kind: str) -> bool:
    """Whether a JSON value can be a field's: an int is a count; a score may be any float, NaN and infinite too."""
    if value is None:
        return "None" in kind
    if "int" in kind:
        return type(value) is int and value >= 0
    return type(value) in (int, float)
