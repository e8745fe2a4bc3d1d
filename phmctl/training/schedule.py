"""Learning-rate schedules, as pure functions of the step. Steps count from 1: the first update uses step 1."""

import math
from collections.abc import Callable

from phmctl.recipe.schema import TrainingSection

Schedule = Callable[[int], float]


def inverse_sqrt(step: int, peak: float, warmup: int) -> float:
    """Return the rate of "Attention Is All You Need" (§5.3), written by its peak.

    It rises in a straight line to `peak` at step `warmup`, then falls with ``step^-0.5``. The paper's own form,
    ``d^-0.5 · min(step^-0.5, step · warmup^-1.5)``, has the peak ``(d · warmup)^-0.5``.
    """
    warmup = max(warmup, 1)
    return peak * min(step / warmup, math.sqrt(warmup / step))


def constant(step: int, peak: float, warmup: int) -> float:
    """Return `peak`, after a straight rise over the first `warmup` steps."""
    return peak * min(1.0, step / max(warmup, 1))


def linear(step: int, peak: float, warmup: int, steps: int) -> float:
    """Return a straight rise to `peak` at step `warmup`, then a straight fall that reaches 0 one step after `steps`.

    The last update therefore still moves the weights.
    """
    if step <= warmup:
        return peak * step / warmup
    return peak * max(0.0, (steps + 1 - step) / (steps + 1 - max(warmup, 1)))


def build_schedule(settings: TrainingSection) -> Schedule:
    """Return the recipe's schedule: step (from 1) -> learning rate."""
    peak, warmup = settings.learning_rate, settings.warmup
    if settings.schedule == "inverse_sqrt":
        return lambda step: inverse_sqrt(step, peak, warmup)
    if settings.schedule == "constant":
        return lambda step: constant(step, peak, warmup)
    return lambda step: linear(step, peak, warmup, settings.steps)
