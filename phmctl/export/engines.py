"""What answers for a run by another engine: an export that is made in passing and kept."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from phmctl.console import note
from phmctl.decoding.engine import CTRANSLATE2, ENGINES, TORCH
from phmctl.errors import OutputError, UserError, check_known
from phmctl.exports import Export
from phmctl.files import locked
from phmctl.runs import Run, Weights

PASSING = 64  # texts that an export made in passing is verified on


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
        return _own_engine(run, engine, quantize)
    from phmctl.export.verb import EXACT, check_options, export

    check_options(engine, quantize, None)
    if engine == TORCH:
        return run
    if precision is not None:
        raise UserError(f"--precision is torch's; --engine {engine} has --quantize {precision} where it can do that")
    weights = run.weights(checkpoint)
    name = "-".join([engine, *([quantize or EXACT] if engine == CTRANSLATE2 else []), weights.name])
    folder = run.folder / "exports" / name
    kept = _kept(folder, weights)
    if kept is None:
        with _writable(run, engine), locked(folder.parent / f".{name}.lock"):
            kept = _kept(folder, weights)
            if kept is None:
                note(f"exporting to {engine}; it is kept in {folder}")
                export(run, engine, folder, checkpoint=checkpoint, quantize=quantize, force=True, texts=PASSING)
                kept = Export.open(folder)
    return kept


@contextmanager
def _writable(run: Run, engine: str) -> Iterator[None]:
    """Say what to do where an export cannot be kept in its run."""
    try:
        yield
    except OutputError as error:
        raise type(error)(
            f"{error}; or export it elsewhere: phmctl export {run.folder} --to {engine} -o DIR"
        ) from error


def _own_engine(run: Export, engine: str, quantize: str | None) -> Run:
    if engine != run.engine or quantize not in (None, run.manifest.get("quantize")):
        raise UserError(
            f"{run.folder} is an export to {run.to}; leave --engine and --quantize out, or give the run itself"
        )
    return run


def _kept(folder: Path, weights: Weights) -> Export | None:
    """Return the export of these weights that was kept; None where there is none, or it is damaged."""
    try:
        found = Export.open(folder)
        found.verify()
    except UserError:
        return None
    return found if found.manifest["checkpoint_sha256"] == weights.sha256 else None
