"""``phmctl export``: a trained run in the form of another engine."""

from pathlib import Path
from typing import Annotated

import typer

from phmctl.cli.options import Checkpoint, Json, RunArgument, Threads


def export(
    run: RunArgument,
    to: Annotated[str, typer.Option("--to", help="ctranslate2, onnx, safetensors or huggingface.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder to write.")],
    checkpoint: Checkpoint = "auto",
    quantize: Annotated[
        str | None,
        typer.Option(help="CTranslate2's type: float32, int8, int8_float32, bfloat16, …  [default: float32]"),
    ] = None,
    form: Annotated[
        str | None, typer.Option(help="Tensors of safetensors: dense, or both (and the PHM form).  [default: both]")
    ] = None,
    texts: Annotated[
        int | None, typer.Option(help="Number of validation texts to compare (default: all).", min=1)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an export in the folder.")] = False,
    threads: Threads = 0,
    json: Json = False,
) -> None:
    """Export a run's model with its tokenizer, settings and model card; decode and eval take the folder as a run.

    The export is compared with the run on the run's validation text.
    """
    from phmctl.console import emit_json
    from phmctl.devices import set_threads
    from phmctl.export.verb import export as export_run
    from phmctl.runs import Run

    set_threads(threads)
    made = export_run(
        Run.open(run), to, output, checkpoint=checkpoint, quantize=quantize, form=form, force=force, texts=texts
    )
    if json:
        emit_json(made.as_json())
        return
    for table in made.tables():
        table.show()
