"""``phmctl train``."""

import sys
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import typer

from phmctl.cli.build import Once
from phmctl.console import Shown, emit, note
from phmctl.devices import world
from phmctl.errors import RecipeError, RunError, UserError
from phmctl.options import TRAIN, TRAIN_AXES, read_axes

if TYPE_CHECKING:
    from phmctl.recipe.loading import RecipeLike

_NEWEST = "newest"  # what --resume means on its own


class TrainCommand(Once):
    """Takes ``--resume`` with and without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``--resume`` at the end, or before another option, as ``--resume newest``; raises UserError."""
        if any(argument.partition("=")[0] == "--run" for argument in args):
            raise UserError("train has no --run: --resume RUN continues a run, --tag NAME names a new one")
        found: list[str] = []
        for argument, following in zip(args, [*args[1:], "--"], strict=True):
            found += [argument, _NEWEST] if argument == "--resume" and following.startswith("-") else [argument]
        return super().parse_args(ctx, found)


def train(
    recipe: str | None,
    *,
    resume: str | None,
    checkpoint: str | None,
    processes: int,
    jobs: int | None,
    list_: bool,
    dry_run: bool,
    **given: Any,
) -> Shown:
    """Train a recipe's model on its prepared data; print the run directory at the end.

    Several values train every combination: --n 1,4 --seed 1,2,3 --set model.dropout=0.1,0.3. Finished trainings are
    skipped, stopped ones continue. Quotes keep a comma in a value: --set 'description="one, two"'.
    """
    if checkpoint is not None and resume is None:
        raise UserError(f"--checkpoint {checkpoint} says where to continue from; add --resume, or leave it out")
    from phmctl import verbs
    from phmctl.sweeps.train import Sweep, refuse_with_sweep

    sweep = None if recipe is None else Sweep.of(recipe, given)
    if sweep is None and (jobs or list_):
        raise UserError("--jobs and --list are for a sweep, which needs a RECIPE")
    if sweep is not None and (jobs or list_ or sweep.many):
        single = {"--resume": resume not in (None, "auto"), "--checkpoint": checkpoint, "--dry-run": dry_run}
        refuse_with_sweep(single | {"--processes": processes > 1 or world().size > 1})
        return sweep.listed() if list_ else sweep.train(jobs or 1)
    given = read_axes(TRAIN, TRAIN_AXES, given) | {"settings": given["settings"] or ()}
    what, resume = _what(recipe, resume)
    if dry_run:
        if world().size > 1:
            raise UserError("--dry-run works in one process; start it without torchrun")
        return _planned(what, given)
    if processes > 1:
        from phmctl.training.processes import launch, without_option

        raise typer.Exit(launch(without_option(sys.argv[1:], "--processes"), processes))
    how = True if resume == _NEWEST else resume or False
    result = verbs.train(what, **given, resume=how, checkpoint=checkpoint or "last", quiet=False)
    if world().rank > 0:
        raise typer.Exit(result.exit_code)
    if result.exit_code:
        return Shown(result.as_json(), code=result.exit_code)
    before = f" ({result.steps} in all)" if result.steps_now < result.steps else ""
    line = f"{result.steps_now} steps in {result.seconds:.1f} s{before}; the run is in:"
    return Shown(result.as_json(), draw=lambda: note(line), text=f"{result.run.folder}\n")


def _what(recipe: str | None, resume: str | None) -> "tuple[RecipeLike, str | None]":
    """Return recipe and resumption as they are meant. Where only a run is named, the recipe is its own."""
    from phmctl.recipe.loading import find_recipe
    from phmctl.runs import Run

    if recipe is not None:
        return recipe, resume
    if resume in (None, "auto", _NEWEST):
        raise UserError("train needs a RECIPE, or a run to continue: --resume RUN")
    try:
        return Run.open(resume).recipe, resume
    except RunError:
        with suppress(RecipeError):
            find_recipe(resume)  # `train --resume RECIPE`
            return resume, _NEWEST
        raise


def _planned(recipe: "RecipeLike", given: Mapping[str, Any]) -> Shown:
    """Show what a training would be: its recipe and its parameters.

    The sizes are those of the prepared data, if there is any, otherwise what the recipe asks for.
    """
    from phmctl.accounting.counting import print_ledger
    from phmctl.accounting.ledger import ledger_for_recipe
    from phmctl.data.prepared.folder import data_root
    from phmctl.recipe.loading import common_overrides, dump_recipe, resolve
    from phmctl.tasks.registry import kind_of
    from phmctl.training.initial import planned_start

    common = {name: value for name, value in given.items() if name not in ("settings", "data", "runs", "tag")}
    resolved, data = resolve(recipe, common_overrides(**common), given["settings"]), given["data"] or data_root()
    start = planned_start(resolved, data)
    sizes = kind_of(resolved).sizes(resolved, data)
    ledger = ledger_for_recipe(resolved, sizes)
    source = "prepared data" if sizes.trained else "recipe"
    document = {"recipe": resolved.model_dump(), "parameters": ledger.as_json(), "vocabularies_from": source}

    def draw() -> None:
        emit(f"{dump_recipe(resolved)}\n")
        print_ledger(ledger)

    return Shown(
        document, draw=draw, notes=[*[sizes.note] * sizes.trained, *([] if start is None else [start.words()])]
    )
