"""``phmctl eval``: score a trained run."""

from pathlib import Path
from typing import Annotated

import typer

from phmctl.cli.decode import Alpha, BatchTokens, Beam
from phmctl.cli.options import Checkpoint, Device, Engine, Execution, Json, ModelArgument, Quantize, Threads


def evaluate(
    run: ModelArgument,
    split: Annotated[str, typer.Option(help="test or valid.")] = "test",
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN2", help="Compare with this run, which is only read, by a paired test."),
    ] = None,
    checkpoint: Checkpoint = "best",
    beam: Beam = None,
    alpha: Alpha = None,
    batch_tokens: BatchTokens = None,
    execution: Execution = None,
    engine: Engine = None,
    quantize: Quantize = None,
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
    """
    from phmctl import verbs
    from phmctl.console import emit_json
    from phmctl.devices import set_threads

    set_threads(threads)
    report = verbs.evaluate(
        run,
        split,
        against=against,
        checkpoint=checkpoint,
        device=device or "auto",
        quiet=False,
        beam=beam,
        alpha=alpha,
        batch_tokens=batch_tokens,
        engine=engine,
        quantize=quantize,
        execution=execution,
        lowercase=lowercase,
    )
    if json:
        emit_json(report.as_json())
        return
    for table in report.tables():
        table.show()
