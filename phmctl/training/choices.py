"""What is measured on a model before its first step, and kept in the run: rates, and how maps are applied.

A step by another execution would round differently, and other rates would train otherwise, so a training that goes on
uses what its run says.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from torch import nn

from phmctl.errors import RunError
from phmctl.files import read_json_object, write_json
from phmctl.nn.tuning import set_executions, tune
from phmctl.runs import Run
from phmctl.training.optimiser import build_rates
from phmctl.training.processes import Processes

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

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
        odd = sorted(rates.keys() ^ names)
        what = f"rates of another model ({odd[0]})" if odd else "rates that are no positive numbers"
        raise RunError(f"{run.folder / RATES} has {what}; copy the run again, or train anew")
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
