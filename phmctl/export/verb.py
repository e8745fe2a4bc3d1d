"""Export a run's model to another format, verify it, and write its model card."""

import shutil
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from phmctl import __version__, plain
from phmctl.answering.opening import (
    CTRANSLATE2,
    EXACT,
    FORMATS,
    MODEL,
    ONNX,
    SAFETENSORS,
    Export,
    open_engine,
)
from phmctl.answering.torch_models import open_classifier
from phmctl.answering.translator import Translator
from phmctl.console import Table, note
from phmctl.data import EOS, PAD
from phmctl.data.card import load_card
from phmctl.data.tokenizer import JOINT_FILE
from phmctl.devices import torch_defaults
from phmctl.dimension import LOW_RANK
from phmctl.errors import DataError, OutputError, PhmctlError, UserError, check_known
from phmctl.export.compact import CompactForm, compact_form
from phmctl.export.ctranslate2 import write_ctranslate2
from phmctl.export.onnx import write_onnx
from phmctl.export.verify import (
    ExportSource,
    Verification,
    max_positions,
    open_source,
    verify_classifier,
    verify_translator,
)
from phmctl.models.assembly import texts_of
from phmctl.recipe.schema import ClassificationRecipe, TranslationRecipe
from phmctl.results.ledger import ledger_for
from phmctl.runs import DATA, EXPORT, RECIPE, Run
from phmctl.runs.copies import load_cleaning
from phmctl.runs.results import read_results
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
from phmctl.tasks import task_of, trains

_SCORES = r"results/(?:[^/]+\.(?:json|hyp|tsv|tmp)|\.lock)"  # files that eval writes into an export
COMPACT = (ONNX, SAFETENSORS)  # formats that can hold A and S
MARK = "to"  # key of the manifest, by which an export is known
_USAGE = {
    "ctranslate2": "phmctl decode DIR, or CTranslate2 with the files in `model/`",
    "onnx": "phmctl decode DIR, or any ONNX runtime; `phmctl.answering.onnx` describes inputs and outputs",
    "safetensors": "phmctl decode DIR, or `load(DIR)` of `plain.py` in it, which needs torch and safetensors only",
}
_CONTENT = {
    "phm": "the file holds A and S (or other factors) of each map, from which its weight is computed on loading",
    "dense": "each map is exported as a plain matrix",
}
_NO_PLACE = "this format has no place for A and S, so each map is exported as a plain matrix"


def model_card(source: ExportSource, description: Mapping[str, Any], verification: Verification) -> str:
    """Return the text of an export's ``README.md``."""
    run, section, data = source.run, source.section, source.run.data()
    recipe = run.recipe
    target_format = description["to"]
    if "quantize" in description:
        target_format += f", {description['quantize']}"
    size = f"rank {section.rank}" if section.algebra == LOW_RANK else f"n = {section.n}"
    maps = "dense maps" if section.algebra == "real" else f"{section.algebra} maps with {size}"
    model = "encoder-decoder Transformer" if source.translates else f"classifier ({section.kind})"
    ledger = ledger_for(task_of(recipe), section, source.sizes)
    totals, inner = ledger.totals, ledger.without_embeddings
    content = _CONTENT[description["weights"]] if description["to"] in COMPACT else _NO_PLACE
    languages = [str(data.get(f"{side}_language", "?")) for side in ("source", "target")]
    try:
        licence = load_card(recipe.model_dump()["data"].get("card", "")).licence
    except DataError:
        licence = "unknown: the corpus has no card"
    sections = {
        "Model": [
            f"{model}, trained with {maps} by phmctl; {content}",
            f"format: {target_format}",
            f"from: run `{description['run']}`, checkpoint {description['checkpoint']}, by phmctl {__version__}",
            f"size of the weights: {size_words(description['bytes'])}",
            f"use: {_USAGE[description['to']]}",
            f"parameters as trained: {totals.parameters:,}; without embeddings {inner.parameters:,}",
            f"parameters of its dense twin: {totals.dense:,}; without embeddings {inner.dense:,}",
        ],
        "Data": [
            f"corpus: {data.get('corpus', '')}",
            f"labels: {', '.join(data['labels'])}" if "labels" in data else f"languages: {' to '.join(languages)}",
            f"licence of the data: {licence}",
            "sizes, cleaning and tokens: `data.json`",
        ],
        "Scores of the run": list(_scores(run)) or ["not scored; score the run with: phmctl eval"],
        "This export compared with the run": [f"verified: {verification}", *verification.score_lines],
    }
    if not source.translates:
        sections["Input and output"] = list(_classifier_interface(source))
    lines = [f"# {recipe.name}, {recipe.variant}"]
    if recipe.description:
        lines += ["", recipe.description]
    for title, items in sections.items():
        lines += ["", f"## {title}", "", *(f"- {item}" for item in items)]
    return "\n".join(lines) + "\n"


def _classifier_interface(source: ExportSource) -> Iterator[str]:
    """Yield how a text becomes a classifier's ids, and how its logits become a label."""
    run, labels = source.run, source.run.data()["labels"]
    cleaning, most = load_cleaning(run), run.recipe_of(ClassificationRecipe).data.max_tokens
    text = "HTML entities (`&amp;`) are decoded; " if cleaning.entities == "decode" else ""
    text += "white space at both ends is removed"
    if cleaning.normalise:
        text += "; Unicode is normalised to NFC, and each run of white space becomes one space"
    yield f"text: {text}"
    yield f"ids: `tokenizers.Tokenizer.from_file('tokenizer/{JOINT_FILE}').encode(text).ids`, no start or end token"
    yield f"length: the {'first' if cleaning.keep == 'start' else 'last'} {most} ids; an empty text is the id {EOS}"
    yield f"padding: id {PAD}, after the ids, up to the longest text of the batch"
    sides = "`first` (batch, length)" if texts_of(source.section) == 1 else "`first` and `second` (batch, length)"
    yield f"input: {sides}, int64; output: `logits` (batch, {len(labels)}), float32"
    yield f"order of the logits: {', '.join(f'{number}: {label}' for number, label in enumerate(labels))}"


def _scores(run: Run) -> Iterator[str]:
    for result in read_results(run):
        signatures = {score["name"]: score["signature"] for score in result.report.get("scores", ())}
        search = result.settings.get("decoding", {})
        settings = [f"checkpoint {result.checkpoint}", *(f"{key} {search[key]}" for key in ("beam", "alpha") if search)]
        for metric in trains(run.recipe).metrics:
            signature = f" ({signatures[metric.name]})" if metric.name in signatures else ""
            value = metric.scale * result.scores[metric.name]
            yield f"{result.split}: {metric.name} {value:.2f}{signature}, {', '.join(settings)}"


def size_words(sizes: Mapping[str, int]) -> str:
    """Return the bytes of an export beside its run's and the dense twin's: ``0.96 MB, 20 % of the dense ...``."""
    weights, run, dense = (sizes[name] / 1e6 for name in ("weights", "run_float32", "dense_float32"))
    share = f"{weights / dense:.0%} of the dense float32 model ({dense:.2f} MB)"
    return f"{weights:.2f} MB, {share}; the run's parameters: {run:.2f} MB"


@dataclass(frozen=True)
class Exported:
    """A written export and its verification."""

    export: Export
    verification: Verification

    def as_json(self) -> dict[str, Any]:
        return {"folder": str(self.export.folder), **self.export.manifest}

    def tables(self) -> Iterator[Table]:
        manifest = self.export.manifest
        size = sum(entry["bytes"] for entry in manifest["files"])
        rows = [
            ("from", f"{manifest['run']}, {manifest['checkpoint']}"),
            ("files", f"{len(manifest['files'])}, {size / 1e6:.1f} MB"),
            ("weights", size_words(manifest["bytes"])),
            ("verified", str(self.verification)),
            *(("greedy", line) for line in self.verification.score_lines),
        ]
        yield Table(f"{self.export.folder}: {self.export.name}", ["", "export"], rows, text=[1])


@torch_defaults()
def export(
    run: Run,
    to: str,
    output: Path,
    *,
    checkpoint: str = "auto",
    weights: str | None = None,
    quantize: str | None = None,
    force: bool = False,
    texts: int | None = None,
) -> Exported:
    """Export a run's model. If the export fails, the output folder stays as it was.

    Args:
        to: a format of :data:`phmctl.answering.opening.FORMATS`.
        output: a new or empty folder, or with `force` an export, which is replaced.
        weights: ``phm``, A and S of each map, the default of the formats that can hold them; or ``dense``.
        quantize: the type of the stored numbers, :data:`phmctl.storage.QUANTIZATIONS` or CTranslate2's; None: float32.
        texts: number of validation texts to verify the export on; None: all.

    Raises:
        UserError: an option is wrong, or the format cannot express the model.
        OutputError: the folder exists and may not be replaced, or cannot be written.
        PhmctlError: the export's answers differ from the run's.
    """
    check_known("format", to, FORMATS)
    if quantize is not None and to in COMPACT:
        check_known(f"quantisation of {to}", quantize, QUANTIZATIONS)
    weight_form = weights or ("phm" if to in COMPACT else "dense")
    check_known("form of the weights", weight_form, ("phm", "dense"))
    if weight_form == "phm" and to not in COMPACT:
        raise UserError(
            f"--weights phm: {' and '.join(COMPACT)} can hold A and S, but {to} cannot; use --weights dense"
        )
    target = output.resolve()
    with sole_writer(target):
        _check_output(target, force=force)
        source = open_source(run, checkpoint)
        weight_type, compact = quantize or EXACT, None
        if to in COMPACT:
            compact = compact_form(source.model, source.form, structured=weight_form == "phm")
        has_factors = compact is not None and bool(compact.rows)
        if weights == "phm" and not has_factors:
            note("the model is dense, so its export with --weights phm is the one with --weights dense")
        with writing(output), replacing(target, EXPORT, MARK, also=_SCORES) as folder:
            _copy_run(run, folder)
            _write(source, to, compact, weight_type, folder)
            verification = _verify(source, to, folder, weight_type, texts)
            description = {
                "to": to,
                "task": run.recipe.task,
                "run": run.name,
                "checkpoint": source.weights.name,
                "checkpoint_sha256": source.weights.sha256,
                "weights": "phm" if has_factors else "dense",
                "bytes": _sizes(source, folder),
                "verification": verification.as_json(),
            }
            if to == CTRANSLATE2 or weight_type != EXACT:
                description["quantize"] = weight_type
            write_atomic(folder / "README.md", model_card(source, description, verification))
            seal(folder, EXPORT, {"format": FORMAT, "phmctl": __version__, **description})
    return Exported(Export.open(output), verification)


def _check_output(folder: Path, *, force: bool) -> None:
    """Raise OutputError unless the folder is missing, empty, or with `force` an export without foreign files."""
    check_own(folder, EXPORT, MARK, also=_SCORES)
    if not force and (folder / EXPORT).is_file():
        raise OutputError(f"{folder} contains an export; name another folder, or overwrite it with --force")


def _write(source: ExportSource, to: str, compact: CompactForm | None, quantize: str, folder: Path) -> None:
    """Write the weights in a format; raise UserError if it cannot express the model."""
    if compact is None:
        if not source.translates:
            raise UserError("CTranslate2 cannot run this classifier; export it --to onnx or safetensors")
        write_ctranslate2(source.form, source.tokenizers, quantize, max_positions(source.run), folder)
    elif to == ONNX:
        write_onnx(source.form, compact, quantize, folder)
    else:
        config, tensors = compact.rounded(quantize)
        write_json(folder / "config.json", config)
        shutil.copyfile(plain.__file__, folder / "plain.py")
        save_tensors(folder / "model.safetensors", tensors)


def _sizes(source: ExportSource, folder: Path) -> dict[str, int]:
    """Return the bytes of the weights in a folder, of the run's parameters and of its dense twin in float32."""
    patterns = ("*.onnx", "*.bin", "*.safetensors", f"{MODEL}/model.bin")
    files = [path for pattern in patterns for path in folder.glob(pattern)]
    return {
        "weights": sum(path.stat().st_size for path in files),
        "run_float32": 4 * sum(parameter.numel() for parameter in source.model.parameters()),
        "dense_float32": 4 * sum(tensor.numel() for tensor in source.form.tensors.values()),
    }


def _copy_run(run: Run, folder: Path) -> None:
    """Copy the run's recipe, data manifest, tokenizers and text, so that the export can be opened like a run."""
    for name in (RECIPE, DATA):
        shutil.copyfile(run.folder / name, folder / name)
    for subfolder in (run.tokenizer_folder, run.text_folder):
        if subfolder.is_dir():
            (folder / subfolder.name).mkdir()
            for path in subfolder.iterdir():  # copytree would hide the errno of a full disk
                shutil.copyfile(path, folder / subfolder.name / path.name)


def _verify(source: ExportSource, to: str, folder: Path, quantize: str, texts: int | None) -> Verification:
    """Compare the export with the run; raise PhmctlError if a float32 export has different answers."""
    predictor = source.predictor
    if isinstance(predictor, Translator):
        recipe = source.run.recipe_of(TranslationRecipe)
        engine = open_engine(to, folder, recipe, source.tokenizers, quantize, "cpu")
        verification = verify_translator(source, engine, texts)
    else:
        exported = copy(predictor)
        exported.model = open_classifier(to, folder, torch.device("cpu"))
        verification = verify_classifier(source, exported, texts)
    if verification.different and quantize == EXACT:
        raise PhmctlError(
            f"the export to {to} was not written: its answers to {verification.different} of {verification.texts} "
            f"texts of {verification.split} differ from the run's by more than a tie. This is a fault of phmctl or of "
            "the engine"
        )
    return verification
