"""Trained runs in the forms that other programs read. An export that exists already is found here without torch."""

from dataclasses import replace
from pathlib import Path

from phmctl.console import note
from phmctl.decoding.translator import ENGINES, TORCH
from phmctl.errors import UserError, check_known
from phmctl.exports import CTRANSLATE2, Export
from phmctl.files import lock
from phmctl.runs import Run, Weights

EXACT = "float32"
PASSING = 64  # texts that an export made in passing is verified on


def check_quantize(to: str, quantize: str | None) -> None:
    if quantize is not None and to != CTRANSLATE2:
        raise UserError(f"--quantize is CTranslate2's, and not {to}'s: name ctranslate2, or leave it out")


def with_engine(
    run: Run, engine: str | None, checkpoint: str = "best", quantize: str | None = None, precision: str | None = None
) -> Run:
    """Return what answers for a run by an engine: itself for torch, else an export that is made once and kept in it.

    It lies in the run's folder, under ``exports/``, and is made anew when the checkpoint is another by now.
    """
    if engine is None and quantize is None:
        return run
    engine = engine or (run.engine if isinstance(run, Export) else TORCH)
    check_known("engine", engine, ENGINES)
    if isinstance(run, Export):
        if engine != run.engine or quantize not in (None, run.manifest.get("quantize")):
            raise UserError(
                f"{run.folder} is an export to {run.to}; leave --engine and --quantize out, or give the run itself"
            )
        return run
    check_quantize(engine, quantize)
    if engine == TORCH:
        return run
    if precision is not None:
        raise UserError(f"--precision is torch's: leave it out of --engine {engine} (CTranslate2 has --quantize)")
    weights = run.weights(checkpoint)
    name = "-".join([engine, *([quantize or EXACT] if engine == CTRANSLATE2 else []), weights.name])
    folder = run.folder / "exports" / name
    if kept := _kept(folder, weights):
        return replace(kept, asked_as=checkpoint)
    from phmctl.export.verb import export

    with lock(folder.parent / f".{name}.lock"):
        kept = _kept(folder, weights)  # another process may have been faster
        if kept is None:
            note(f"exporting to {engine}; it is kept in {folder}")
            made = export(run, engine, folder, checkpoint=checkpoint, quantize=quantize, force=True, texts=PASSING)
            kept = made.export
        return replace(kept, asked_as=checkpoint)


def _kept(folder: Path, weights: Weights) -> Export | None:
    try:
        found = Export.open(folder)
        found.verify()
    except UserError:
        return None
    return found if found.manifest["checkpoint_sha256"] == weights.sha256 else None
