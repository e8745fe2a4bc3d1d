"""``phmctl eval``: score a trained run."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from phmctl.cli.decode import Alpha, BatchTokens, Beam
from phmctl.cli.options import (
    Checkpoint,
    DataRoot,
    Device,
    Engine,
    Execution,
    Json,
    ModelArgument,
    Quantize,
    RunsRoot,
    Threads,
)
from phmctl.errors import UserError

if TYPE_CHECKING:
    from phmctl.tasks.base import Report


def evaluate(
    run: ModelArgument,
    split: Annotated[str, typer.Option(help="test or valid.")] = "test",
    against: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN2", help="Compare with this run, which is only read, by a paired test. Repeatable."),
    ] = None,
    checkpoint: Checkpoint = "auto",
    beam: Beam = None,
    alpha: Alpha = None,
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
    json: Json = False,
) -> None:
    """Score a split of the run's own text: a translator's by BLEU, chrF and TER, a classifier's by accuracy.

    What must be decoded for it is kept. --beam, --alpha, --batch-tokens and --lowercase are a translator's.

    --probing trains a probe for each probing task that is prepared in --data (those in --runs are not trained again).
    """
    from phmctl import verbs
    from phmctl.console import Table, emit_json, note
    from phmctl.devices import set_threads

    set_threads(threads)
    common: dict[str, Any] = {"checkpoint": checkpoint, "device": device or "auto"}
    own: dict[str, Any] = {
        "beam": beam,
        "alpha": alpha,
        "batch_tokens": batch_tokens,
        "execution": execution,
        "lowercase": lowercase,
    }
    own |= {"engine": engine, "quantize": quantize}
    score: Callable[..., Report]
    if probing:
        from phmctl.probes import probe

        _refuse({**own, "split": None if split == "test" else split}, "has no part in --probing")
        score = partial(probe, run, **common, data=data, runs=runs, settings=settings or ())
    else:
        _refuse({"set": settings, "data": data, "runs": runs}, "belongs to --probing")
        score = partial(verbs.evaluate, run, split, **common, quiet=False, **own)
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


def _refuse(options: dict[str, Any], why: str) -> None:
    wrong = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if wrong:
        raise UserError(f"{', '.join(wrong)} {why}: leave it out")
