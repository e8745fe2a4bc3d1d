"""What ``train --dry-run`` shows: the recipe, the parameters and the time of a training."""

from contextlib import suppress
from datetime import timedelta
from typing import Any

from phmctl.console import Shown
from phmctl.data.prepared import data_root
from phmctl.devices import pick_device, world
from phmctl.errors import DataError, UserError
from phmctl.options import Call
from phmctl.recipe.loading import COMMON, common_overrides, dump_recipe, resolve
from phmctl.results.counting import ledger_table
from phmctl.results.ledger import ledger_for_recipe
from phmctl.runs.find import runs_root
from phmctl.tasks import task_of, trains
from phmctl.training.initial import find_start
from phmctl.training.optimiser import seconds_per_step
from phmctl.verbs import recipe_to_train


def training_plan(call: Call[Any]) -> Shown:
    """Return the recipe and the parameters of a training.

    Vocabulary sizes come from the prepared data if it exists, otherwise from the recipe.
    """
    if world().size > 1:
        raise UserError("--dry-run works in one process; start it without torchrun")
    written, _ = recipe_to_train(call["recipe"], call["resume"], call["tag"], call["runs"])
    recipe = resolve(written, common_overrides(**call.select(COMMON)), call["settings"])
    root = data_root(call["data"])
    task = None
    with suppress(DataError):  # the data is not prepared: the run to start from is checked alone, and nothing is timed
        task = trains(recipe).open(recipe, root)
    start = find_start(recipe, task, runs_root(call["runs"]))
    sizes = task_of(recipe).sizes(recipe, root)
    ledger = ledger_for_recipe(recipe, sizes)
    notes = [sizes.note] if sizes.trained else []
    if start is not None:
        notes.append(start.summary())
    if task is not None and recipe.training.steps:
        seconds = seconds_per_step(task, recipe.training, pick_device(recipe.training.device))
        total = timedelta(seconds=round(seconds * recipe.training.steps))
        notes.append(f"about {total} on this machine, {seconds:.2g} seconds a step, without validations")
    document = {
        "recipe": recipe.model_dump(),
        "parameters": ledger.as_json(),
        "vocabularies_from": "prepared data" if sizes.trained else "recipe",
    }
    return Shown(document, text=f"{dump_recipe(recipe)}\n{ledger_table(ledger).drawn()}", notes=notes)
