"""The optimiser: Adam or AdamW, and learning rates.

Weight decay applies to every parameter, as in the AdamW paper and torch, but only to the last factor of a weight
(:mod:`phmctl.nn.rates`). ``clip`` bounds the norm of all gradients together: Adam's steps do not depend on the scale
of a gradient, so A and S need no separate bounds.
"""

import json
import math
from collections.abc import Callable, Mapping

from torch import nn
from torch.optim import Adam, AdamW, Optimizer

from phmctl.errors import RunError
from phmctl.nn.rates import groups_by_rate, relative_rates
from phmctl.recipe.schema import TrainingSection
from phmctl.runs import Run
from phmctl.storage import read_json_object, saved_steps, write_atomic

RATES = "rates.json"  # file in the run: parameter name -> rate as a multiple of the recipe's


def build_optimiser(
    model: nn.Module, settings: TrainingSection, rates: Mapping[str, float] | None = None
) -> Adam | AdamW:
    """Return the recipe's optimiser over all trainable parameters, a shared parameter once.

    `rates` has the rate of each parameter, by name, as a multiple of the recipe's (default: :func:`choose_rates`).
    Fused kernels make one pass over the memory instead of eight, on the CPU and on CUDA.
    """
    optimiser_class = AdamW if settings.optimizer == "adamw" else Adam
    rates = choose_rates(model, settings) if rates is None else rates
    return optimiser_class(
        groups_by_rate(model, rates, settings.learning_rate, settings.weight_decay, one_rate=settings.rates == "one"),
        lr=settings.learning_rate,
        betas=(settings.beta1, settings.beta2),
        eps=settings.epsilon,
        weight_decay=settings.weight_decay,
        fused=True,
    )


def choose_rates(model: nn.Module, settings: TrainingSection, run: Run | None = None) -> dict[str, float]:
    """Return the rate of each trainable parameter as a multiple of the recipe's, by ``training.rates``.

    A new run stores the rates, because a resumed training would compute them from trained weights. Raises RunError if
    the stored rates belong to another model.
    """
    if settings.rates == "one":
        return {name: 1.0 for name, parameter in model.named_parameters() if parameter.requires_grad}
    rates = relative_rates(model)
    if run is None:
        return rates
    path = run.folder / RATES
    if not path.exists() and not saved_steps(run.checkpoints_folder):
        write_atomic(path, json.dumps(rates, indent=2) + "\n")
        return rates
    stored = read_json_object(path, RunError, "copy the run again")
    if stored.keys() != rates.keys():
        raise RunError(f"{path} is of another model; copy the run again, or train again")
    return stored


def set_learning_rate(optimiser: Optimizer, rate: float) -> None:
    """Set the learning rate of every group to the group's multiple of the model's rate."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["relative"]


def build_schedule(settings: TrainingSection) -> Callable[[int], float]:
    """Return the recipe's schedule: update (from 1) -> learning rate.

    All rise linearly to the peak at step `warmup`. ``constant`` stays there, ``linear`` falls to 0 one step after the
    last, ``inverse_sqrt`` falls with ``step^-0.5``, as in "Attention Is All You Need" (§5.3), where
    ``d^-0.5 · min(step^-0.5, step · warmup^-1.5)`` has the peak ``(d · warmup)^-0.5``.
    """
    peak, warmup, end = settings.learning_rate, max(settings.warmup, 1), settings.steps + 1

    def linear(step: int) -> float:
        if step <= settings.warmup:
            return peak * step / warmup
        return peak * max(0.0, (end - step) / (end - warmup))

    if settings.schedule == "linear":
        return linear
    if settings.schedule == "inverse_sqrt":
        return lambda step: peak * min(step / warmup, math.sqrt(warmup / step))
    return lambda step: peak * min(1.0, step / warmup)
