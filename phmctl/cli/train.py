"""``phmctl train``."""

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phmctl.cli import options
from phmctl.console import emit, emit_json, note
from phmctl.devices import world
from phmctl.errors import RecipeError, RunError, UserError

if TYPE_CHECKING:
    from phmctl.recipe.loading import RecipeLike
    from phmctl.recipe.schema import Recipe
    from phmctl.training.train import TrainingResult

_NEWEST = "newest"  # what --resume means on its own


class TrainCommand(options.Once):
    """Takes ``--resume`` with and without a value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read ``--resume`` at the end, or before another option, as ``--resume newest``; raises UserError."""
        if any(argument.partition("=")[0] == "--run" for argument in args):
            raise UserError("train has no --run: --resume RUN continues a run, --tag NAME names a new one")
        found: list[str] = []
        for argument, following in zip(args, [*args[1:], "--"], strict=True):
            found += [argument, _NEWEST] if argument == "--resume" and following.startswith("-") else [argument]
        return super().parse_args(ctx, found)


_Execution = Annotated[
    str | None,
    typer.Option(help="How maps that hold factors are applied: dense, rank, or auto, which times both before step 1."),
]
_Init = Annotated[
    str | None,
    typer.Option("--init", metavar="RUN", help="Copy tensors of the same name and shape from this run."),
]
_Resume = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="[RUN|auto]",
        help="Continue RUN (RECIPE may be left out); without a value, the newest run of RECIPE; "
        "auto: start one if there is none.",
    ),
]


def train(
    recipe: options.OptionalRecipe = None,
    n: Annotated[
        str | None, typer.Option("--n", help="Kronecker products: about 1/n of the parameters; 1 is dense.")
    ] = None,
    algebra: options.Algebra = None,
    seed: Annotated[str | None, typer.Option(help="Seed of initialisation, dropout and batch order.")] = None,
    device: options.Device = None,
    steps: Annotated[str | None, typer.Option(help="Number of optimiser steps.")] = None,
    execution: _Execution = None,
    init: _Init = None,
    settings: options.Settings = None,
    data: options.DataRoot = None,
    runs: options.RunsRoot = None,
    resume: _Resume = None,
    checkpoint: Annotated[
        str | None, typer.Option(help="With --resume: checkpoint to continue from: last (default), best or step-N.")
    ] = None,
    tag: Annotated[
        str | None, typer.Option(help="Name of the new run; commands accept it in place of a folder.")
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, help="Number of processes on this machine; torchrun starts them on several.")
    ] = 1,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Number of trainings of a sweep that run at once; they share the threads.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Print one command for each training, for a job array; train nothing.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print recipe and parameters; train nothing.")] = False,
    json: options.Json = False,
) -> None:
    """Train a recipe's model on its prepared data; print the run directory at the end.

    Several values train every combination: --n 1,4 --seed 1,2,3 --set model.dropout=0.1,0.3. Finished trainings are
    skipped, stopped ones continue. Quotes keep a comma in a value: --set 'description="one, two"'.
    """
    if checkpoint is not None and resume is None:
        raise UserError(f"--checkpoint {checkpoint} says where to continue from; add --resume, or leave it out")
    given: dict[str, Any] = {"n": n, "algebra": algebra, "seed": seed, "device": device, "steps": steps}
    given |= {"execution": execution, "init": init}
    single = {"--resume": resume not in (None, "auto"), "--checkpoint": checkpoint, "--dry-run": dry_run}
    single |= {"--processes": processes > 1 or world().size > 1}
    where: dict[str, Any] = {"data": data, "runs": runs, "tag": tag}
    code = _sweep(recipe, given, settings or (), where, single, jobs, list_, json)
    if code is not None:
        raise typer.Exit(code)
    given |= _numbers(n=n, seed=seed, steps=steps)
    what, resume = _what(recipe, resume)
    if dry_run:
        from phmctl.recipe.loading import common_overrides, resolve

        if world().size > 1:
            raise UserError("--dry-run works in one process; start it without torchrun")
        _show(resolve(what, common_overrides(**given), settings or ()), data, json)
        return
    if processes > 1:
        from phmctl.training.launch import launch, without_option

        raise typer.Exit(launch(without_option(sys.argv[1:], "--processes"), processes))
    from phmctl import verbs

    how = True if resume == _NEWEST else resume or False
    where |= {"resume": how, "checkpoint": checkpoint or "last"}
    result = verbs.train(what, **given, settings=settings or (), **where, quiet=False)
    if world().rank == 0:
        _report(result, json)
    raise typer.Exit(result.exit_code)


def _report(result: "TrainingResult", json: bool) -> None:
    """Print where the run is, and how long it took."""
    if json:
        emit_json(result.as_json())
    elif result.exit_code == 0:
        before = f" ({result.steps} in all)" if result.steps_now < result.steps else ""
        note(f"{result.steps_now} steps in {result.seconds:.1f} s{before}; the run is in:")
        emit(f"{result.run.folder}\n")


def _numbers(**given: str | None) -> dict[str, int]:
    from phmctl.recipe.loading import whole_number

    return {name: whole_number(f"--{name}", text) for name, text in given.items() if text is not None}


def _sweep(
    recipe: str | None,
    given: Mapping[str, str | None],
    settings: Sequence[str],
    where: Mapping[str, Any],
    single: Mapping[str, Any],
    jobs: int | None,
    listed: bool,
    json: bool,
) -> int | None:
    """Train the cells of a sweep, or print their commands, if one is asked for; return the exit code."""
    from phmctl.cli.sweeping import carry_out
    from phmctl.sweeps.train import Sweep, refuse_with_sweep, sweep

    wanted = jobs is not None or listed
    asked = None if recipe is None else Sweep.of(recipe, given, settings, **where)
    if asked is None and wanted:
        raise UserError("--jobs and --list are for a sweep, which needs a RECIPE")
    if asked is None or not (wanted or asked.many):
        return None
    refuse_with_sweep(single)
    return carry_out(asked, sweep, jobs, listed=listed, json=json)


def _what(recipe: str | None, resume: str | None) -> "tuple[RecipeLike, str | None]":
    """Return recipe and resumption as they are meant. Where only a run is named, the recipe is its own.

    Raises:
        UserError: neither is there.
        RunError: there is no such run.
    """
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


def _show(recipe: "Recipe", data: Path | None, json: bool) -> None:
    """Print what a training would be: its recipe and its parameters.

    The sizes are those of the prepared data, if there is any, otherwise what the recipe asks for.
    """
    from phmctl.accounting.ledger import ledger_for_recipe
    from phmctl.accounting.printing import print_ledger
    from phmctl.data.prepared.folder import data_root
    from phmctl.recipe.loading import dump_recipe
    from phmctl.tasks.registry import kind_of
    from phmctl.training.initial import planned_start

    start = planned_start(recipe, data or data_root())
    sizes = kind_of(recipe).sizes(recipe, data or data_root())
    ledger = ledger_for_recipe(recipe, sizes)
    if json:
        document = {"recipe": recipe.model_dump(), "parameters": ledger.as_json()}
        emit_json({**document, "vocabularies_from": "prepared data" if sizes.trained else "recipe"})
        return
    emit(f"{dump_recipe(recipe)}\n")
    print_ledger(ledger)
    if sizes.trained:
        note(sizes.note)
    if start is not None:
        note(start.words())
