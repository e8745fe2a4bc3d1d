"""Export a run, verify the export, and write the model card."""

import shutil
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from phmctl import plain
from phmctl.answering.classifier import Classifier, open_classifier
from phmctl.answering.opening import (
    COMPACT,
    CTRANSLATE2,
    EXACT,
    FORMATS,
    MODEL,
    ONNX,
    Export,
    open_engine,
)
from phmctl.answering.translator import Translator
from phmctl.console import Table, note
from phmctl.devices import torch_defaults
from phmctl.errors import OutputError, PhmctlError, UserError, check_known
from phmctl.export.card import model_card, size_words
from phmctl.export.ctranslate2 import position_count, write_ctranslate2
from phmctl.export.forms import Form, compact_form, dense_form
from phmctl.export.onnx import write_onnx
from phmctl.export.verify import Verification, verify
from phmctl.models import load
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import AUTO, DATA, EXPORT, RECIPE, Run, Weights
from phmctl.storage import (
    FORMAT,
    QUANTIZATIONS,
    check_own,
    replacing,
    save_tensors,
    seal,
    sole_writer,
    write_atomic,
    write_json,
    writing,
)
from phmctl.tasks import answers
from phmctl.version import __version__

_SCORES = r"results/(?:[^/]+\.(?:json|hyp|tsv|tmp)|\.lock)"  # files that eval writes into an export
_MARK = "to"  # key of the manifest, by which an export is known
_WEIGHT_FILES = ("*.onnx", "*.bin", "*.safetensors", f"{MODEL}/model.bin")


@dataclass(frozen=True)
class Exported:
    """A written export and the verification."""

    export: Export
    verification: Verification | None  # None: it was not compared with the run

    def as_json(self) -> dict[str, object]:
        return {"folder": str(self.export.folder), **self.export.manifest}

    def tables(self) -> Iterator[Table]:
        manifest = self.export.manifest
        size = sum(entry["bytes"] for entry in manifest["files"])
        rows = [
            ("from", f"{manifest['run']}, {manifest['checkpoint']}"),
            ("files", f"{len(manifest['files'])}, {size / 1e6:.1f} MB"),
            ("weights", size_words(manifest["bytes"])),
        ]
        if self.verification is not None:
            rows += zip(("verified", "greedy"), self.verification.lines, strict=True)
        yield Table(f"{self.export.folder}: {self.export.name}", ["", "export"], rows, text=[1])


@torch_defaults()
def export(
    run: Run,
    to: str,
    output: Path,
    *,
    checkpoint: str = AUTO,
    weights: str | None = None,
    quantize: str | None = None,
    force: bool = False,
    texts: int | None = None,
    with_text: bool = False,
) -> Exported:
    """Export a run's model. If the export fails, the output folder stays as it was.

    Args:
        to: a format of :data:`phmctl.answering.opening.FORMATS`.
        output: a new or empty folder, or with `force` an export, which is replaced.
        weights: ``phm``, A and S of each map, the default of the formats that can hold them, or ``dense``.
        quantize: the type of the stored numbers, :data:`phmctl.storage.QUANTIZATIONS` or CTranslate2's. None: float32.
        texts: number of validation texts to verify the export on. None: all. 0: do not verify it.
        with_text: copy the run's valid and test text, so that eval can score the export on it.

    Raises:
        UserError: an option is wrong, or the format or the task cannot be exported.
        OutputError: the folder exists and may not be replaced, or cannot be written.
        RunError: the run is damaged, or lacks a text to verify the export on.
        PhmctlError: the export's answers differ from the run's.
    """
    answers(run.recipe, "export")  # raises UserError before anything is written
    check_known("format", to, FORMATS)
    if quantize is not None and to in COMPACT:
        check_known(f"quantisation of {to}", quantize, QUANTIZATIONS)
    weight_form = weights or ("phm" if to in COMPACT else "dense")
    check_known("form of the weights", weight_form, ("phm", "dense"))
    if weight_form == "phm" and to not in COMPACT:
        raise UserError(
            f"--weights phm: {' and '.join(COMPACT)} can hold A and S, but {to} cannot; use --weights dense"
        )
    if to == CTRANSLATE2 and not isinstance(run.recipe, TranslationRecipe):
        raise UserError("CTranslate2 cannot run this classifier; export it --to onnx or safetensors")
    if output.is_symlink() and not output.exists():
        raise OutputError(f"{output} is a link to a missing folder: create that folder, or name another one")
    target = output.resolve()
    with sole_writer(target):
        check_own(target, EXPORT, _MARK, also=_SCORES)
        if not force and (target / EXPORT).is_file():
            raise OutputError(f"{target} contains an export; name another folder, or overwrite it with --force")
        source = _load(run, run.chosen(checkpoint))
        dense = dense_form(source.model, run.recipe.model, source.sizes)
        stored = compact_form(source.model, dense) if weight_form == "phm" else dense
        if weights == "phm" and not stored.rows:
            note("the model is dense, so its export with --weights phm is the one with --weights dense")
        number_type = quantize or EXACT
        with writing(output), replacing(target, EXPORT, _MARK, also=_SCORES) as folder:
            _copy_run(run, folder, with_text=with_text)
            _write(source, to, stored, number_type, folder)
            verification = None if texts == 0 else _verify(source, to, folder, number_type, texts)
            description = {
                "to": to,
                "task": run.recipe.task,
                "run": run.name,
                "checkpoint": source.weights.name,
                "checkpoint_sha256": source.weights.sha256,
                "weights": "phm" if stored.rows else "dense",
                "bytes": {
                    "weights": sum(path.stat().st_size for files in _WEIGHT_FILES for path in folder.glob(files)),
                    "run_float32": 4 * sum(parameter.numel() for parameter in source.model.parameters()),
                    "dense_float32": 4 * sum(tensor.numel() for tensor in dense.tensors.values()),
                },
                "verification": None if verification is None else verification.as_json(),
            }
            if to == CTRANSLATE2 or number_type != EXACT:
                description["quantize"] = number_type
            verified = ["not verified"]
            if verification is not None:
                verified = [f"verified: {verification.lines[0]}", *verification.lines[1:]]
            write_atomic(folder / "README.md", model_card(run, source.sizes, description, verified))
            seal(folder, EXPORT, {"format": FORMAT, "phmctl": __version__, **description})
    return Exported(Export.open(output), verification)


@dataclass(frozen=True)
class _Source:
    """A loaded checkpoint of a run."""

    run: Run
    weights: Weights
    model: nn.Module  # as trained, in evaluation mode, on the CPU
    predictor: Translator | Classifier  # answers with torch
    sizes: dict[str, int]  # sizes of the vocabularies and the label set, named as by the task


def _load(run: Run, checkpoint: str) -> _Source:
    """Load a checkpoint twice: as the command decode does, without bfloat16, and as it was trained."""
    options = {"precision": "float32"} if isinstance(run.recipe, TranslationRecipe) else {}
    predictor = answers(run.recipe, "export").load(run, checkpoint, "cpu", **options)
    if isinstance(predictor, Translator):
        sizes = {"source": predictor.tokenizers.source.size, "target": predictor.tokenizers.target.size}
    else:
        sizes = {"vocabulary": predictor.tokenizer.size, "classes": len(predictor.labels)}
    path, tensors = run.read_model(checkpoint)
    model = load(run.recipe.model, sizes, tensors, path, torch.device("cpu"))
    return _Source(run, run.weights(checkpoint), model, predictor, sizes)


def _copy_run(run: Run, folder: Path, *, with_text: bool) -> None:
    """Copy the run's recipe, data manifest and tokenizers, so that the export can be opened like a run."""
    for name in (RECIPE, DATA):
        shutil.copyfile(run.folder / name, folder / name)
    for subfolder in (run.tokenizer_folder, run.text_folder) if with_text else (run.tokenizer_folder,):
        if subfolder.is_dir():
            (folder / subfolder.name).mkdir()
            for path in subfolder.iterdir():  # copytree would hide the errno of a full disk
                shutil.copyfile(path, folder / subfolder.name / path.name)


def _write(source: _Source, to: str, form: Form, number_type: str, folder: Path) -> None:
    """Write the weights in a format. Raises UserError if it cannot express the model."""
    if isinstance(source.predictor, Translator) and to == CTRANSLATE2:
        positions = position_count(source.run.recipe_of(TranslationRecipe))
        write_ctranslate2(form, source.predictor.tokenizers, number_type, positions, folder)
    elif to == ONNX:
        write_onnx(form, number_type, folder)
    else:
        config, tensors = form.rounded(number_type)
        write_json(folder / "config.json", config)
        shutil.copyfile(plain.__file__, folder / "plain.py")
        save_tensors(folder / "model.safetensors", tensors)


def _verify(source: _Source, to: str, folder: Path, number_type: str, texts: int | None) -> Verification:
    """Compare the export with the run. Raises PhmctlError if a float32 export has different answers."""
    exported = copy(source.predictor)
    export = Export(folder, source.run.recipe, {"to": to, "quantize": number_type})
    if isinstance(exported, Translator):
        exported.engine = open_engine(export, "", exported.tokenizers, device="cpu")
    else:
        exported.model = open_classifier(export, "", source.sizes, torch.device("cpu"))
    verification = verify(source.run, source.predictor, exported, texts)
    if verification.different and number_type == EXACT:
        raise PhmctlError(
            f"the export to {to} was not written: its answers to {verification.different} of {verification.texts} "
            f"texts of {verification.split} differ from the run's by more than a tie. This is a fault of phmctl or of "
            "the engine"
        )
    return verification
