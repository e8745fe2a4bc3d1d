"""``phmctl eval``: score a trained run."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from phmctl.cli import eval_options as own
from phmctl.cli.decode import BatchTokens
from phmctl.cli.options import (
    Checkpoint,
    DataRoot,
    Device,
    Engine,
    Execution,
    Json,
    Precision,
    Quantize,
    Threads,
)
from phmctl.errors import UserError

if TYPE_CHECKING:
    from phmctl.tasks.base import Report


def evaluate(
    names: own.Names,
    split: own.Split = "test",
    against: own.Against = None,
    checkpoint: Checkpoint = "auto",
    beam: own.Beam = None,
    alpha: own.Alpha = None,
    batch_tokens: BatchTokens = None,
    execution: Execution = None,
    precision: Precision = None,
    engine: Engine = None,
    quantize: Quantize = None,
    probing: own.Probing = False,
    settings: own.Settings = None,
    data: DataRoot = None,
    lowercase: own.Lowercase = None,
    tokenize: own.Tokenize = None,
    source: own.Source = None,
    reference: own.Reference = None,
    device: Device = None,
    threads: Threads = 0,
    every: own.Every = False,
    jobs: own.Jobs = None,
    list_: own.List = False,
    json: Json = False,
) -> None:
    """Score a run on a split of its text: translators by BLEU, chrF and TER, classifiers by accuracy.

    Translations are kept in the run. --beam, --alpha, --batch-tokens, --precision, --lowercase, --tokenize, --source
    and --reference are for translators.

    Several runs or values (--beam 1,4 --checkpoint best,average) are scored one by one.

    --probing trains a probe for each probing task prepared in --data, each once: its answers are kept there.
    """
    if not probing and source is None:
        split = _splits(names, every, split)
    values = {"split": split, "checkpoint": checkpoint, "beam": beam, "alpha": alpha, "execution": execution}
    values |= {"precision": precision}
    further: dict[str, Any] = {"batch_tokens": batch_tokens, "engine": engine, "quantize": quantize}
    further |= {"tokenize": tokenize, "source": source, "reference": reference}
    cased = {"lowercase": lowercase is True, "cased": lowercase is False}
    places = {"against": against, "device": device, "threads": threads}
    if not probing:
        _refuse({"set": settings, "data": data}, "belongs to --probing")
    code = _sweep(names, every, values, {**further, **cased, **places}, jobs, list_, json, probing)
    if code is not None:
        raise typer.Exit(code)
    from phmctl import verbs
    from phmctl.devices import set_threads
    from phmctl.recipe.loading import number, whole_number

    set_threads(threads)
    (run,) = names
    common: dict[str, Any] = {"checkpoint": checkpoint, "device": device or "auto"}
    asked: dict[str, Any] = {**further, "execution": execution, "precision": precision, "lowercase": lowercase}
    asked |= {"beam": None if beam is None else whole_number("--beam", beam)}
    asked |= {"alpha": None if alpha is None else number("--alpha", alpha)}
    score: Callable[..., Report]
    if probing:
        from phmctl.probes import probe

        _refuse({**asked, "split": None if split == "test" else split}, "has no part in --probing")
        score = partial(probe, run, **common, data=data, settings=settings or ())
    else:
        score = partial(verbs.evaluate, run, split, **common, quiet=False, **asked)
    _show(run, score, against, json)


def _show(run: Path, score: "Callable[..., Report]", against: list[Path] | None, json: bool) -> None:
    """Score a run, against each baseline in turn, and print what was found."""
    from phmctl import verbs
    from phmctl.console import Table, emit_json, note, once

    rivals: Sequence[Path | None] = against or [None]
    with once():
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
    from phmctl.cli.sweeping import carry_out
    from phmctl.sweeps.evaluate import EvalSweep, evaluate_all

    parted = any("," in value for value in values.values() if value)
    if len(names) == 1 and not (every or jobs or listed or parted):
        return None
    if probing:
        raise UserError("--probing is for one run: its probes are many already; leave it out, or name one run")
    asked = EvalSweep.of(names, every, values, options)
    return carry_out(asked, evaluate_all, jobs, listed=listed, json=json)


def _splits(names: Sequence[Path], every: bool, split: str) -> str:
    """The splits that are meant, parted by commas: where the runs have only named test sets, these are ``test``."""
    from phmctl.exports import open_model
    from phmctl.runs import splits_asked
    from phmctl.runs.find import select_runs

    if split not in ("test", "all"):
        return split
    return ",".join(splits_asked([open_model(run) for run in (select_runs(names) if every else names)], split))


def _refuse(options: dict[str, Any], why: str) -> None:
    wrong = [f"--{name.replace('_', '-')}" for name, value in options.items() if value is not None]
    if wrong:
        raise UserError(f"{', '.join(wrong)} {why}: leave it out")
