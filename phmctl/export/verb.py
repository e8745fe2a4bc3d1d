"""``export``: a run's model in the form of another engine, verified against the run before it gets its name."""

import shutil
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from phmctl import __version__
from phmctl.console import Table, note
from phmctl.decoding.engine import ENGINES, TORCH
from phmctl.decoding.loading import open_engine
from phmctl.decoding.translator import Translator
from phmctl.dimension import TWO_FACTORS
from phmctl.errors import OutputError, PhmctlError, UserError, check_known
from phmctl.export.card import model_card
from phmctl.export.dense import FORMS, write_plain
from phmctl.export.subject import Subject, open_subject
from phmctl.export.verify import Verification, verify_classifier, verify_translator
from phmctl.exports import CTRANSLATE2, FORMAT, FORMATS, HUGGINGFACE, ONNX, SAFETENSORS, Export
from phmctl.files import clear, locked, replacing, write_atomic, writing
from phmctl.runs import DATA, EXPORT, RECIPE, Run, Weights
from phmctl.sealed import seal
from phmctl.tasks.classification.predictor import exported_model

EXACT = "float32"


@dataclass(frozen=True)
class Exported:
    """An export that was made, and how its answers compare with torch's."""

    export: Export
    verification: Verification

    def as_json(self) -> dict[str, Any]:
        return {"folder": str(self.export.folder), **self.export.manifest}

    def tables(self) -> Iterator[Table]:
        manifest, found = self.export.manifest, self.verification
        total = sum(entry["bytes"] for entry in manifest["files"])
        rows: list[tuple[str, str]] = [
            ("from", f"{manifest['run']}, {manifest['checkpoint']}"),
            ("files", f"{len(manifest['files'])}, {total / 1e6:.1f} MB"),
            ("verified", str(found)),
        ]
        if found.scores:
            rows.append((f"greedy {found.scores['metric']}", found.score_words))
        yield Table(f"{self.export.folder}: {self.export.name}", ["", "export"], rows, text=[1])


def export(
    run: Run,
    to: str,
    output: Path,
    *,
    checkpoint: str = "auto",
    quantize: str | None = None,
    form: str | None = None,
    force: bool = False,
    texts: int | None = None,
) -> Exported:
    """Export a run's model; where that fails, nothing is left and what stood there stands.

    `quantize` is CTranslate2's type (float32 where None); `form`, of safetensors, ``dense`` or ``both`` (with the PHM
    form, the default); `texts` how many of the run's own validation texts are compared (None: all).

    UserError: the format cannot express the model; OutputError: the folder would be overwritten; PhmctlError: the
    export does not answer as the run does.
    """
    check_known("format", to, FORMATS)
    check_options(to, quantize, form)
    target = output.resolve()
    clear(target)
    _check_output(output, force=force)
    subject = open_subject(run, checkpoint)
    write = _writer(subject, to, quantize or EXACT, form or "both")
    with writing(output), replacing(target) as folder:
        _copy_run(run, folder)
        write(folder)
        found = _verify(subject, to, folder, quantize or EXACT, texts)
        described = {
            "to": to,
            **({"quantize": quantize or EXACT} if to == CTRANSLATE2 else {}),
            "task": run.recipe.task,
            "run": run.name,
            "checkpoint": subject.weights.name,
            "checkpoint_sha256": subject.weights.sha256,
            "verification": found.as_json(),
        }
        write_atomic(folder / "README.md", model_card(subject, described, found))
        seal(folder, EXPORT, {"format": FORMAT, "phmctl": __version__, **described})
        _check_output(target, force=force)  # somebody may have filled it meanwhile
    return Exported(Export.open(output), found)


def check_options(to: str, quantize: str | None, form: str | None) -> None:
    """Refuse (UserError) an option that is not of the format."""
    if quantize is not None and to != CTRANSLATE2:
        raise UserError(f"--quantize is CTranslate2's; an export to {to} is float32: leave it out")
    if form is not None:
        if to != SAFETENSORS:
            raise UserError(f"--form is for --to safetensors; an export to {to} is dense: leave it out")
        check_known("form", form, FORMS)


def _check_output(folder: Path, *, force: bool) -> None:
    """Refuse (OutputError) what would be overwritten: a file, or what is not empty; with `force` all but an export."""
    if folder.exists() and not folder.is_dir():
        raise OutputError(f"{folder} is a file; name a folder that is empty or does not exist")
    if not folder.exists() or not any(folder.iterdir()):
        return
    if not (folder / EXPORT).is_file():
        raise OutputError(f"{folder} is not empty and holds no export, so it is never overwritten; name another folder")
    if not force:
        raise OutputError(f"{folder} is not empty; name another folder, or overwrite the export there with --force")


def _writer(subject: Subject, to: str, quantize: str, form: str) -> Callable[[Path], None]:
    """Refuse what a format cannot express, before anything is written; return what writes the weights in its form."""
    if to == CTRANSLATE2:
        if not subject.translates:
            raise UserError("CTranslate2 runs translators, not this classifier; export it --to onnx or safetensors")
        from phmctl.export.ctranslate2 import check_quantize, write_ctranslate2

        check_quantize(quantize)
        return lambda folder: write_ctranslate2(subject.form, subject.tokenizers, quantize, subject.longest, folder)
    if to == ONNX:
        from phmctl.export.onnx import check_onnx, write_onnx

        check_onnx(subject.section)
        return lambda folder: write_onnx(subject.form, folder)
    if to == HUGGINGFACE:
        from phmctl.export.huggingface import check_huggingface, write_huggingface

        check_huggingface(subject)
        return partial(write_huggingface, subject)
    has_rules = subject.section.dimension > 1 and subject.section.algebra not in TWO_FACTORS
    return lambda folder: write_plain(subject.form, subject.model if has_rules and form == "both" else None, folder)


def _copy_run(run: Run, folder: Path) -> None:
    """Copy what makes an export read like a run: recipe, data's manifest, tokenizers, text."""
    for name in (RECIPE, DATA):
        shutil.copyfile(run.folder / name, folder / name)
    for source in (run.tokenizer_folder, run.text_folder):
        if source.is_dir():
            (folder / source.name).mkdir()
            for path in source.iterdir():  # copytree hides the system's reason when the disk is full
                shutil.copyfile(path, folder / source.name / path.name)


def _verify(subject: Subject, to: str, folder: Path, quantize: str, texts: int | None) -> Verification:
    """Compare the export with the run; PhmctlError where it differs although its numbers are float32."""
    ours = subject.answering
    if to == HUGGINGFACE:
        from phmctl.export.huggingface import verify_huggingface

        found = verify_huggingface(subject, folder, texts)
    elif isinstance(ours, Translator):
        engine = open_engine(to, folder, subject.section, subject.tokenizers, quantize=quantize, device="cpu")
        found = verify_translator(subject, ours, engine, texts)
    else:
        theirs = copy(ours)
        theirs.model = exported_model(to, folder, device="cpu")
        found = verify_classifier(subject, ours, theirs, texts)
    if found.different and (to != CTRANSLATE2 or quantize == EXACT):
        raise PhmctlError(
            f"the export to {to} answers {found.different} of {found.texts} texts of {found.split} otherwise than the "
            "run, and not by a tie; it was not written. This is a fault of phmctl or of the engine"
        )
    return found


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
        if engine != run.engine or quantize not in (None, run.manifest.get("quantize")):
            raise UserError(
                f"{run.folder} is an export to {run.to}; leave --engine and --quantize out, or give the run itself"
            )
        return run
    check_options(engine, quantize, None)
    if engine == TORCH:
        return run
    if precision is not None:
        raise UserError(f"--precision is torch's; --engine {engine} has --quantize {precision} where it can do that")
    weights = run.weights(checkpoint)
    name = "-".join([engine, *([quantize or EXACT] if engine == CTRANSLATE2 else []), weights.name])
    folder = run.folder / "exports" / name
    if kept := _kept(folder, weights):
        return kept
    try:
        with locked(folder.parent / f".{name}.lock"):
            if kept := _kept(folder, weights):  # another process was faster
                return kept
            note(f"exporting to {engine}; it is kept in {folder}")
            return export(
                run, engine, folder, checkpoint=checkpoint, quantize=quantize, force=True, texts=PASSING
            ).export
    except OutputError as error:
        elsewhere = f"phmctl export {run.folder} --to {engine} -o DIR"
        raise type(error)(f"{error}; or export it elsewhere: {elsewhere}") from error


def _kept(folder: Path, weights: Weights) -> Export | None:
    """The export of these weights that was kept; None where there is none, or it is damaged."""
    try:
        found = Export.open(folder)
        found.verify()
    except UserError:
        return None
    return found if found.manifest["checkpoint_sha256"] == weights.sha256 else None
