"""``training.minutes``: how many optimiser steps fit into a time, so that schedules and checkpoints go by steps."""

import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phmctl.devices import isolated
from phmctl.errors import RecipeError
from phmctl.nn.tuning import tune
from phmctl.recipe.schema import TrainingSection
from phmctl.training.optimiser import build_optimiser
from phmctl.training.precision import build_autocast

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

_BATCHES = 8  # that are timed, evenly spaced over an epoch: batches differ in length


def steps_within(minutes: float, task: "Task", execution: str, training: TrainingSection, device: torch.device) -> int:
    """Return how many steps a training does in so many minutes, by timing a few of a model that is thrown away.

    Raises:
        RecipeError: the time is too short for one step.
    """
    with isolated(device, training.threads):
        plan = task.plan(0)
        chosen = [plan[number * len(plan) // _BATCHES] for number in range(_BATCHES)]
        model = task.build_model(device)
        if execution == "auto":
            tune(model, task.cost(chosen[0]).tokens)
        sample = [task.collate(rows).to(device) for rows in chosen]
        step = stepper(model, lambda model, batch: mean_loss(task, model, batch), training, sample, device)
        step()  # warms up
        begun = time.perf_counter()
        step()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds = (time.perf_counter() - begun) / len(sample) * training.accumulate
    steps = int(60 * minutes / seconds)
    if steps < 1:
        raise RecipeError(f"training.minutes = {minutes:g}: one step takes {seconds:.2g} seconds here; raise it")
    return steps


def mean_loss(task: "Task", model: nn.Module, batch: Any) -> Tensor:
    """Return the mean loss of a batch over its items."""
    total, count = task.loss(model, batch)
    return total / count


def stepper(
    model: nn.Module,
    loss: Callable[[nn.Module, Any], Tensor],
    training: TrainingSection,
    sample: Sequence[Any],
    device: torch.device,
    optimiser: Optimizer | None = None,
) -> Callable[[], object]:
    """Return a function that trains one step on each batch of a sample."""
    autocast = build_autocast(device, training.precision)
    optimiser = optimiser or build_optimiser(model, training)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.train()

    def steps() -> None:
        for batch in sample:
            with autocast():
                value = loss(model, batch)
            value.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, training.clip or torch.inf)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return steps
