"""The commands ``train``, ``sweep`` and ``distil``."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

import phmctl
from phmctl.cli.options import (
    N_HELP,
    Algebra,
    Data,
    Json,
    N,
    RecipeDevice,
    RecipeName,
    Runs,
    Settings,
    Text,
    Threads,
    integers,
    names,
    split_setting,
)
from phmctl.console import Shown
from phmctl.devices import world
from phmctl.threads import set_threads

if TYPE_CHECKING:
    from phmctl.training.train import TrainingResult


def _one_number(text: str | int) -> int:
    """Return the number in an option. Several numbers belong to ``phmctl sweep``."""
    try:
        return int(text)
    except ValueError:
        reason = "several values: phmctl sweep" if "," in str(text) else "it is not a whole number"
        raise typer.BadParameter(f"{text!r}: {reason}") from None


Tag = Annotated[str | None, Option(help="Name of the new run; commands accept it like a folder.")]


def train(
    recipe: Annotated[str, Argument(metavar="RECIPE", help="Recipe: a path or a shipped name; or RUN with --resume.")],
    n: Annotated[int | None, Option(parser=_one_number, metavar="<int>", help=N_HELP)] = None,
    algebra: Algebra = None,
    seed: Annotated[
        int | None,
        Option(parser=_one_number, metavar="<int>", help="Seed of initialisation, dropout and batch order."),
    ] = None,
    device: RecipeDevice = None,
    steps: Annotated[int | None, Option(parser=_one_number, metavar="<int>", help="Number of optimiser steps.")] = None,
    init: Annotated[
        Text, Option(metavar="RUN", help="Start with the tensors of RUN, or with the sums nearest to them.")
    ] = None,
    settings: Settings = None,
    data: Data = None,
    runs: Runs = None,
    resume: Annotated[bool, Option("--resume", help="Continue RUN, or RECIPE's newest run; else start.")] = False,
    checkpoint: Annotated[Text, Option(help="With --resume: last (default), best or step-N.")] = None,
    tag: Tag = None,
    threads: Threads = 0,
    dry_run: Annotated[bool, Option("--dry-run", help="Print recipe, parameters and time; train nothing.")] = False,
    json: Json = False,
) -> Shown:
    """Train a recipe's model on prepared data. Print the run directory at the end."""
    options: dict[str, Any] = {"n": n, "algebra": algebra, "seed": seed, "device": device, "steps": steps}
    options["init"] = init
    if threads:
        set_threads(threads)
        settings = [*(settings or ()), f"training.threads={threads}"]
    if dry_run:
        from phmctl.cli.planning import training_plan

        return training_plan(recipe, options, settings or (), data, runs, resume=resume)
    result = phmctl.train(
        recipe,
        **options,
        settings=settings or (),
        data=data,
        runs=runs,
        resume=resume,
        checkpoint=checkpoint,
        tag=tag,
        quiet=False,
    )
    total = f" ({result.steps} in all)" if result.steps_now < result.steps else ""
    line = f"{result.steps_now} steps in {result.seconds:.1f} s{total}; the run is in:"
    return trained(result, notes=[line])


def trained(result: "TrainingResult", notes: Sequence[str] = ()) -> Shown:
    """Return the output at the end of a training: the run's folder. Only rank 0 prints it."""
    if world().rank > 0:
        raise typer.Exit(result.exit_code)
    if result.exit_code:
        return Shown(result.as_json(), code=result.exit_code)
    return Shown(result.as_json(), notes=notes, text=f"{result.run.folder}\n")


def sweep(
    recipe: RecipeName,
    n: Annotated[str | None, Option(metavar="N,N", help="Values of n; 1 is dense.")] = None,
    algebra: Annotated[str | None, Option(metavar="NAME,NAME", help="Algebras: phm,quaternion.")] = None,
    seed: Annotated[str | None, Option(metavar="N,N", help="Seeds.")] = None,
    steps: Annotated[str | None, Option(metavar="N,N", help="Numbers of optimiser steps.")] = None,
    settings: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE,VALUE", help="Values of a recipe key: model.dropout=0.1,0.3. Repeatable."),
    ] = None,
    data: Data = None,
    runs: Runs = None,
    tag: Annotated[str | None, Option(help="Name of the new runs; commands accept it like a folder.")] = None,
    jobs: Annotated[int, Option(min=1, help="Number of trainings at once; they share the cores.")] = 1,
    list_: Annotated[bool, Option("--list", help="Print a command for each training; train nothing.")] = False,
    json: Json = False,
) -> Shown:
    """Train every combination of values. Skip finished trainings, and continue stopped ones.

    Each training has a process. Quotes keep a comma in a value: --set 'description="one, two"'.
    """
    from phmctl import sweeps

    axes: dict[str, Sequence[int | str]] = {"n": integers("n", n), "algebra": names("algebra", algebra)}
    axes |= {"seed": integers("seed", seed), "steps": integers("steps", steps)}
    chosen = [split_setting(setting) for setting in settings or ()]
    return sweeps.sweep(recipe, axes, chosen, data=data, runs=runs, tag=tag, jobs=jobs, list_only=list_)


def distil(
    teacher: Annotated[
        str,
        Argument(metavar="TEACHER_RUN", help="A trained translator or classifier. The student trains on its data."),
    ],
    recipe: Annotated[str | None, Option(help="The student's recipe (default: the teacher's).")] = None,
    n: N = None,
    algebra: Algebra = None,
    seed: Annotated[int | None, Option(help="Seed of the student.")] = None,
    steps: Annotated[int | None, Option(min=1, help="Number of optimiser steps of the student.")] = None,
    settings: Settings = None,
    start: Annotated[str, Option(help="nearest: the teacher's nearest Kronecker sums; or random.")] = "nearest",
    beam: Annotated[int | None, Option(min=1, help="Beam size of the teacher (default: its recipe's).")] = None,
    data: Data = None,
    runs: Runs = None,
    tag: Tag = None,
    json: Json = False,
) -> Shown:
    """Train a small model on a trained model's answers. Print the student's run directory at the end.

    A translator translates the training text by beam search, once for all students. A student of a classifier
    learns the classifier's probabilities and the labels.
    """
    result = phmctl.distil(
        teacher,
        recipe,
        n=n,
        algebra=algebra,
        seed=seed,
        steps=steps,
        settings=settings or (),
        start=start,
        beam=beam,
        data=data,
        runs=runs,
        tag=tag,
        quiet=False,
    )
    return trained(result)
