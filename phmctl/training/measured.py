"""What is measured before a training's first step: how many steps ``training.minutes`` are, rates, and executions.

Rates and executions are kept in the run: a training that goes on uses what its run says, for it would round otherwise.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from phmctl.devices import isolated
from phmctl.errors import RecipeError, RunError
from phmctl.files import read_json_object, write_json
from phmctl.nn.tuning import set_executions, tune
from phmctl.recipe.schema import TrainingSection
from phmctl.runs import Run
from phmctl.timing import alternate
from phmctl.training.optimiser import build_autocast, build_optimiser, build_rates
from phmctl.training.processes import Processes

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
        calls = {"steps": stepper(model, partial(mean_loss, task), training, sample, device)}
        (taken,) = alternate(calls, rounds=1, seconds=0, device=device)["steps"]  # the second time; the first warms up
        seconds = taken / len(sample) * training.accumulate
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


EXECUTIONS = "executions.json"  # in the run: module name -> dense or rank
RATES = "rates.json"  # in the run: parameter name -> its rate as a multiple of the recipe's


def apply_executions(model: nn.Module, task: "Task", run: Run, processes: Processes) -> None:
    """Set how the maps that hold factors are applied, where ``model.execution`` is ``auto``; every process calls it.

    Raises:
        RunError: what the run says is damaged.
    """
    if run.recipe.model.execution != "auto":
        return

    def measure() -> dict[str, Any]:
        plan = task.plan(0)
        return tune(model, tokens=task.cost(plan[0]).tokens) if plan else {}

    set_executions(model, _kept(run, EXECUTIONS, measure, processes))


def choose_rates(model: nn.Module, run: Run, processes: Processes) -> dict[str, float]:
    """Return the rate of each trainable parameter as a multiple of the recipe's; every process calls it.

    Raises:
        RunError: what the run says is damaged, or of another model.
    """
    settings = run.recipe.training
    if settings.rates == "one":
        return build_rates(model, settings)
    rates = _kept(run, RATES, lambda: build_rates(model, settings), processes)
    names = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    if rates.keys() != names or not all(isinstance(rate, float) and 0 < rate < 1e6 for rate in rates.values()):
        raise RunError(f"{run.folder / RATES} is damaged, or of another model; copy the run again, or train anew")
    return rates


def _kept(run: Run, name: str, measure: Callable[[], dict[str, Any]], processes: Processes) -> dict[str, Any]:
    """Return what the run's file `name` says; the first time rank 0 measures it and writes the file."""
    chosen: dict[str, Any] = {}
    with processes.agreed():
        path = run.folder / name
        if processes.leads and path.exists():
            chosen = read_json_object(path, RunError, "copy the run again")
        elif processes.leads:
            chosen = measure()
            if chosen:
                write_json(path, chosen)
    return processes.broadcast(chosen)
