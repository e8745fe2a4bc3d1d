"""``phmctl eval``: score a trained run."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phmctl.cli.decode import BatchTokens
from phmctl.cli.options import (
    Checkpoint,
    DataRoot,
    Device,
    Engine,
    Execution,
    Json,
    Quantize,
    RunsRoot,
    Threads,
)
from phmctl.errors import UserError

if TYPE_CHECKING:
    from phmctl.tasks.base import Report


def evaluate(
    names: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Runs, folders of versions (the newest is taken), tags, or exports."),
    ],
    split: Annotated[str, typer.Option(help="test or valid.")] = "test",
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN2", help="Compare with this run, which is only read, by a paired test. Repeatable."),
    ] = None,
    checkpoint: Checkpoint = "auto",
    beam: Annotated[str | None, typer.Option(help="Beam size; 1 is greedy. Default: the recipe's.")] = None,
    alpha: Annotated[str | None, typer.Option(help="Exponent of the length penalty. Default: the recipe's.")] = None,
    batch_tokens: BatchTokens = None,
    execution: Execution = None,
    engine: Engine = None,
    quantize: Quantize = None,
    probing: Annotated[
        bool, typer.Option("--probing", help="Score what a translator's encoder knows: Table 3 of Li et al. 2020.")
    ] = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="With --probing: a key of the probes' recipes. Repeatable."),
    ] = None,
    data: DataRoot = None,
    runs: RunsRoot = None,
    lowercase: Annotated[
        bool | None,
        typer.Option(
            "--lowercase/--cased", help="BLEU and chrF in lower case (default: if the corpus is lower-cased)."
        ),
    ] = None,
    device: Device = None,
    threads: Threads = 0,
    every: Annotated[bool, typer.Option("--all", help="Score all runs that RUN means, not the newest one.")] = False,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Of several, so many at once; the threads are divided among them.")
    ] = None,
    list_: Annotated[
        bool, typer.Option("--list", help="Print one command each, for a scheduler's job array; score nothing.")
    ] = False,
    json: Json = False,
) -> None:
    """Score a split of the run's own text: a translator's by BLEU, chrF and TER, a classifier's by accuracy.

    What must be decoded for it is kept. --beam, --alpha, --batch-tokens and --lowercase are a translator's.

    Several runs, or several values (--beam 1,4 --checkpoint best,average), are scored each by itself.

    --probing trains a probe for each probing task that is prepared in --data (those in --runs are not trained again).
    """
    values = {"split": split, "checkpoint": checkpoint, "beam": beam, "alpha": alpha, "execution": execution}
    further: dict[str, Any] = {"batch_tokens": batch_tokens, "engine": engine, "quantize": quantize}
    cased = {"lowercase": lowercase is True, "cased": lowercase is False}
    places = {"against": against, "device": device, "threads": threads}
    code = _sweep(names, every, values, {**further, **cased, **places}, jobs, list_, json, probing)
    if code is not None:
        raise typer.Exit(code)
    from phmctl import verbs
    from phmctl.devices import set_threads
    from phmctl.recipe.loading import number, whole_number

    set_threads(threads)
    (run,) = names
    common: dict[str, Any] = {"checkpoint": checkpoint, "device": device or "auto"}
    own: dict[str, Any] = {**further, "execution": execution, "lowercase": lowercase}
    own |= {"beam": None if beam is None else whole_number("--beam", beam)}
    own |= {"alpha": None if alpha is None else number("--alpha", alpha)}
    score: Callable[..., Report]
    if probing:
        from phmctl.probes import probe

        _refuse({**own, "split": None if split == "test" else split}, "has no part in --probing")
        score = partial(probe, run, **common, data=data, runs=runs, settings=settings or ())
    else:
        _refuse({"set": settings, "data": data, "runs": runs}, "belongs to --probing")
        score = partial(verbs.evaluate, run, split, **common, quiet=False, **own)
    _show(run, score, against, json)


def _show(run: Path, score: "Callable[..., Report]", against: list[Path] | None, json: bool) -> None:
    """Score a run, against each baseline in turn, and print what was found."""
    from phmctl import verbs
    from phmctl.console import Table, emit_json, note

    rivals: Sequence[Path | None] = against or [None]
    reports = [score(against=rival) for rival in rivals]
    lines = [[] if rival is None else verbs.differences(run, rival) for rival in rivals]
    if json:
        told = [
            report.as_json() | ({"differences": found} if against else {})
            for report, found in zip(reports, lines, strict=True)
        ]
        emit_json(told[0] if len(told) == 1 else {"comparisons": told})
        return
    shown: list[Table] = []
    for report, found in zip(reports, lines, strict=True):
        for table in report.tables():
            if table not in shown:  # the run's own scores once
                table.show()
                shown.append(table)
        for line in (*getattr(report, "notes", tuple)(), *(f"· {text}" for text in found)):
            note(line)


def _sweep(
    names: Sequence[Path],
    every: bool,
    values: dict[str, str | None],
    options: dict[str, Any],
    jobs: int | None,
    listed: bool,
    json: bool,
    probing: bool,
) -> int | None:
    """Score several, or print their commands, if several are meant; return the exit code."""
    from phmctl.console import emit, emit_json, note
    from phmctl.sweeps.evaluate import EvalSweep, evaluate_all

    parted = any("," in value for value in values.values() if value)
    if len(names) == 1 and not (every or jobs or listed or parted):
        return None
    if probing:
        raise UserError("--probing is for one run: its probes are many already; leave it out, or name one run")
    asked = EvalSweep.of(names, every, values, options)
    if listed:
        emit_json(asked.commands()) if json else emit("".join(f"{line}\n" for line in asked.commands()))
        return 0
    report = evaluate_all(asked, jobs or 1)
    emit_json(report.as_json()) if json else report.table().show()
    for remark in report.remarks():
        note(remark)
    return report.exit_code


def _refuse(options: dict[str, Any], why: str) -> None:
    wrong = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if wrong:
        raise UserError(f"{', '.join(wrong)} {why}: leave it out")
