"""How the maps of a training are applied, dense or by rank: chosen before the first step and kept in the run.

A step by another execution would round differently, so a training that goes on uses what its run says.
"""

from typing import TYPE_CHECKING

from torch import nn

from phmctl.errors import RunError
from phmctl.files import read_json_object, write_json
from phmctl.nn.tune import set_executions, tune
from phmctl.runs import Run
from phmctl.training.processes import Processes

if TYPE_CHECKING:
    from phmctl.tasks.base import Task

EXECUTIONS = "executions.json"  # in the run: module name -> dense or rank


def apply_executions(model: nn.Module, task: "Task", run: Run, processes: Processes) -> None:
    """Set how the maps that hold factors are applied, where ``model.execution`` is ``auto``; every process calls it.

    Rank 0 reads what the run says (RunError: it is damaged), or measures it for the tokens of a micro-batch and writes
    it.
    """
    if run.recipe.model.execution != "auto":
        return
    chosen: dict[str, str] = {}
    with processes.agreed():
        path = run.folder / EXECUTIONS
        if processes.leads and path.exists():
            chosen = read_json_object(path, RunError, "copy the run again")
        elif processes.leads and (plan := task.plan(0)):
            chosen = tune(model, tokens=task.cost(plan[0]).tokens)
            if chosen:
                write_json(path, chosen)
    set_executions(model, processes.broadcast(chosen))
