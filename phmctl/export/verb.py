"""``export``: a run's model in the form of another engine, verified against the run before it gets its name."""

import shutil
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl.console import Table
from phmctl.decoding.loading import open_engine
from phmctl.decoding.translator import Translator
from phmctl.errors import PhmctlError, UserError, check_known
from phmctl.export.card import model_card
from phmctl.export.folder import check_output, write_export
from phmctl.export.subject import Subject, open_subject
from phmctl.export.verify import Verification, verify_classifier, verify_translator
from phmctl.exports import CTRANSLATE2, FORMATS, HUGGINGFACE, ONNX, SAFETENSORS, TORCH, Export
from phmctl.files import clear, write_atomic
from phmctl.runs import DATA, RECIPE, Run
from phmctl.tasks.classification.predictor import exported_model

EXACT = "float32"


@dataclass(frozen=True)
class Exported:
    """What ``export`` made."""

    export: Export  # the export
    verification: Verification  # how its answers compare with torch's

    def as_json(self) -> dict[str, Any]:
        """Return JSON values: the manifest and the folder."""
        return {"folder": str(self.export.folder), **self.export.manifest}

    def tables(self) -> Iterator[Table]:
        """Yield what people are shown."""
        manifest, found = self.export.manifest, self.verification
        total = sum(entry["bytes"] for entry in manifest["files"])
        rows: list[tuple[str, str]] = [
            ("from", f"{manifest['run']}, {manifest['checkpoint']}"),
            ("files", f"{len(manifest['files'])}, {total / 1e6:.1f} MB"),
        ]
        if found.split is None:
            rows.append(("verified", "not: the run keeps no text"))
        else:
            rows.append(
                (
                    "verified",
                    f"{found.texts:,} texts of {found.split}: {found.equal:,} answers equal to torch's, "
                    f"{found.ties:,} differ by a tie, {found.different:,} otherwise",
                )
            )
            if found.scores:
                ours, theirs = (found.scores[name] for name in ("torch", "export"))
                rows.append((f"greedy {found.scores['metric']}", f"torch {ours:.4g}, export {theirs:.4g}"))
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
    """Export a run's model."""
    check_known("format", to, FORMATS)
    check_options(to, quantize, form)
    clear(output.resolve())
    check_output(output, force=force)
    subject = open_subject(run, checkpoint)
    options = {"quantize": quantize or EXACT} if to == CTRANSLATE2 else {}
    _check_expressible(subject, to, quantize or EXACT)
    made: list[Verification] = []

    def fill(folder: Path) -> Mapping[str, Any]:
        _copy_run(run, folder)
        _write(subject, to, folder, quantize or EXACT, form or "both")
        found = _verify(subject, to, folder, quantize or EXACT, texts)
        made.append(found)
        described = {
            "to": to,
            **options,
            "task": run.recipe.task,
            "run": run.name,
            "checkpoint": subject.weights.name,
            "checkpoint_sha256": subject.weights.sha256,
            "verification": found.as_json(),
        }
        write_atomic(folder / "README.md", model_card(subject, described))
        return described

    write_export(output, fill, force=force)
    return Exported(Export.open(output), made[0])


def check_options(to: str, quantize: str | None, form: str | None) -> None:
    """Refuse (UserError) an option that is not of the format."""
    if quantize is not None and to != CTRANSLATE2:
        raise UserError(f"--quantize is CTranslate2's; an export to {to} is float32: leave it out")
    if form is not None and to not in (SAFETENSORS, TORCH):
        raise UserError(f"--form is for --to safetensors and torch; an export to {to} is dense: leave it out")


def _check_expressible(subject: Subject, to: str, quantize: str) -> None:
    """Refuse what a format cannot express, before anything is written."""
    section = subject.section
    if to == CTRANSLATE2:
        if not subject.translates:
            raise UserError(
                "CTranslate2 runs translators, not this classifier; export it --to onnx, safetensors or torch"
            )
        from phmctl.export.ctranslate2 import check_quantize

        check_quantize(quantize)
    elif to == ONNX:
        from phmctl.export.onnx import check_onnx

        check_onnx(section)
    elif to == HUGGINGFACE:
        from phmctl.export.huggingface import check_huggingface

        check_huggingface(subject)


def _copy_run(run: Run, folder: Path) -> None:
    """Copy what makes an export read like a run: recipe, data's manifest, tokenizers, text."""
    for name in (RECIPE, DATA):
        shutil.copyfile(run.folder / name, folder / name)
    for source in (run.tokenizer_folder, run.text_folder):
        if source.is_dir():
            (folder / source.name).mkdir()
            for path in source.iterdir():  # copytree hides the system's reason when the disk is full
                shutil.copyfile(path, folder / source.name / path.name)


def _write(subject: Subject, to: str, folder: Path, quantize: str, form: str) -> None:
    """Write the weights in the format's own form."""
    if to == CTRANSLATE2:
        from phmctl.export.ctranslate2 import write_ctranslate2

        write_ctranslate2(subject.form, subject.tokenizers, quantize, subject.longest, folder)
    elif to == ONNX:
        from phmctl.export.onnx import write_onnx

        write_onnx(subject.form, folder)
    elif to == HUGGINGFACE:
        from phmctl.export.huggingface import write_huggingface

        write_huggingface(subject, folder)
    else:
        from phmctl.export.plain_files import write_plain

        write_plain(subject, to, form, folder)


def _verify(subject: Subject, to: str, folder: Path, quantize: str, texts: int | None) -> Verification:
    """Compare the export with the run."""
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
