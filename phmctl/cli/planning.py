"""The plan that ``train --dry-run`` prints: the recipe, the parameters and the time of a training."""

from collections.abc import Mapping, Sequence
from datetime import timedelta
from pathlib import Path

from phmctl.benchmarks import seconds_per_step
from phmctl.console import Shown
from phmctl.devices import pick_device, world
from phmctl.errors import DataError, UserError
from phmctl.recipe.loading import common_overrides, dump_recipe, resolve
from phmctl.results.counting import ledger_table
from phmctl.results.ledger import ledger_for_recipe
from phmctl.runs.run import runs_root
from phmctl.storage import saved_steps
from phmctl.tasks import task_of, trains
from phmctl.training.start import find_start
from phmctl.training.train import data_of
from phmctl.verbs import recipe_and_run


def training_plan(
    recipe: str,
    options: Mapping[str, int | str | Path | None],
    settings: Sequence[str],
    data: Path | None,
    runs: Path | None,
    *,
    resume: bool,
) -> Shown:
    """Return the recipe, the parameters and the time of a training.

    Vocabulary sizes come from the prepared data if it exists, otherwise from the recipe.
    """
    if world().size > 1:
        raise UserError("--dry-run works in one process. Start it without torchrun")
    written, run = recipe_and_run(recipe, resume=resume, runs=runs)
    resolved = resolve(written, common_overrides(**options), settings)
    root, notes = data or data_of(run), []
    try:
        task = trains(resolved).open(resolved, root)
    except DataError as error:
        task = None
        notes.append(f"the time is not measured: {error}")
    if run is None or not saved_steps(run.checkpoints_folder):
        find_start(resolved, task, runs_root(runs))  # notes what is copied. Copying nothing is an error
    sizes = task_of(resolved).sizes(resolved, root)
    if sizes.trained:
        notes.append(sizes.note)
    if task is not None:
        seconds = seconds_per_step(task, resolved.training, pick_device(resolved.training.device))
        total = timedelta(seconds=round(seconds * resolved.training.steps))
        notes.append(f"about {total} on this machine, {seconds:.2g} seconds a step, without validations")
    ledger = ledger_for_recipe(resolved, sizes)
    document = {
        "recipe": resolved.model_dump(),
        "parameters": ledger.as_json(),
        "vocabularies_from": "prepared data" if sizes.trained else "recipe",
    }
    return Shown(document, text=f"{dump_recipe(resolved)}\n{ledger_table(ledger).drawn()}", notes=notes)
