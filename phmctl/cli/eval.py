"""``phmctl eval``: score a trained run."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from phmctl.cli.decode import Alpha, BatchTokens, Beam
from phmctl.cli.options import Checkpoint, Device, Execution, Json, RunArgument, Threads

if TYPE_CHECKING:
    from phmctl.evaluation.evaluate import Evaluation


def evaluate(
    run: RunArgument,
    split: Annotated[str, typer.Option(help="test or valid.")] = "test",
    against: Annotated[
        Path | None,
        typer.Option(metavar="RUN2", help="Compare with this run, which is only read, by paired bootstrap."),
    ] = None,
    checkpoint: Checkpoint = "best",
    beam: Beam = None,
    alpha: Alpha = None,
    batch_tokens: BatchTokens = None,
    execution: Execution = None,
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
    """Decode a split if that is not done yet, and score it: BLEU, chrF, TER, BLEU by source length."""
    from phmctl.console import emit_json
    from phmctl.decoding.settings import change_decoding
    from phmctl.devices import set_threads
    from phmctl.evaluation.evaluate import evaluate as evaluate_run
    from phmctl.recipe.schema import TranslationRecipe
    from phmctl.runs import Run

    set_threads(threads)
    opened = Run.open(run)
    evaluation = evaluate_run(
        opened,
        split,
        checkpoint,
        against=None if against is None else Run.open(against),
        decoding=change_decoding(
            opened.recipe_of(TranslationRecipe).decoding,
            beam=beam,
            alpha=alpha,
            batch_tokens=batch_tokens,
            execution=execution,
        ),
        device=device or "auto",
        lowercase=lowercase,
    )
    if json:
        emit_json(evaluation.as_dict())
    else:
        _show(evaluation)


def _show(evaluation: "Evaluation") -> None:
    from phmctl.console import print_table

    decoding = evaluation.decoding
    print_table(
        f"{evaluation.run}, {evaluation.split}: {evaluation.sentences:,} sentences, "
        f"checkpoint {evaluation.checkpoint}, beam {decoding.beam}, alpha {decoding.alpha}",
        ["metric", "score", "signature"],
        [(score.name, f"{score.value:.2f}", score.signature) for score in evaluation.scores],
    )
    print_table(
        "BLEU by source length",
        ["words", "sentences", "BLEU"],
        [
            (f"{one.low}–{one.high}" if one.high else f"{one.low} and more", one.sentences, _number(one.bleu))
            for one in evaluation.by_length
        ],
    )
    if evaluation.against:
        _show_comparison(evaluation)


def _show_comparison(evaluation: "Evaluation") -> None:
    from phmctl.console import print_table

    print_table(
        f"paired bootstrap against {evaluation.against} (± half the 95 % interval)",
        ["metric", "baseline", "this run", "difference", "p", "signature"],
        [
            (
                one.name,
                f"{one.baseline:.2f} ± {one.baseline_interval:.2f}",
                f"{one.system:.2f} ± {one.system_interval:.2f}",
                f"{one.difference:+.2f}",
                f"{one.p_value:.4f}",
                one.signature,
            )
            for one in evaluation.comparisons
        ],
    )


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
