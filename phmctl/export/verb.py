"""``export``: a run's model in the form of another engine, verified before it gets its name; its model card."""

import shutil
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from phmctl import __version__
from phmctl.accounting.ledger import ledger_for
from phmctl.console import Table
from phmctl.data.card import load_card
from phmctl.decoding.translator import Translator, open_engine
from phmctl.dimension import LOW_RANK, TWO_FACTORS
from phmctl.errors import DataError, OutputError, PhmctlError, UserError, check_known
from phmctl.export import EXACT, check_quantize
from phmctl.export.ctranslate2 import write_ctranslate2
from phmctl.export.dense import write_plain
from phmctl.export.huggingface import verify_huggingface, write_huggingface
from phmctl.export.onnx import write_onnx
from phmctl.export.verify import IDS, Subject, Verification, open_subject, verify_classifier, verify_translator
from phmctl.exports import CTRANSLATE2, FORMAT, FORMATS, HUGGINGFACE, ONNX, Export
from phmctl.files import replacing, restore_replaced, seal, write_atomic, writing
from phmctl.runs import DATA, EXPORT, RECIPE, Run
from phmctl.runs.results import read_results
from phmctl.tasks.classification.task import exported_model
from phmctl.tasks.registry import kind_of

_USE = {
    "ctranslate2": "phmctl decode DIR, or CTranslate2 itself: the model's files are in `model/`.",
    "onnx": "phmctl decode DIR, or any ONNX runtime: `phmctl.decoding.onnx_engine` says what the graphs take.",
    "safetensors": "phmctl decode DIR, or `load(DIR)` of `plain.py` in this folder, which wants torch alone.",
    "huggingface": "the transformers library: AutoTokenizer and AutoModelForSeq2SeqLM, `from_pretrained(DIR)`.",
}


def model_card(subject: Subject, described: Mapping[str, Any], found: Verification) -> str:
    """Return the text of the export's ``README.md``."""
    run, section = subject.run, subject.section
    recipe, to, quantize = run.recipe, described["to"], described.get("quantize")
    number = f"rank {section.rank}" if section.algebra == LOW_RANK else f"n = {section.dimension}"
    maps = "dense maps" if section.algebra == "real" else f"{section.algebra} maps with {number}"
    kind = "encoder-decoder Transformer" if subject.translates else f"classifier ({section.kind})"
    ledger = ledger_for(kind_of(recipe), section, subject.sizes)
    totals, inner, data = ledger.totals, ledger.without_embeddings, run.data()
    here, use = "here each map is a plain matrix", _USE[to]
    if found.compared == IDS:
        here = "its tokenizer is here, the model is not"
        use = "the transformers library: AutoTokenizer, `from_pretrained(DIR)`."
    languages = [str(data.get(f"{side}_language", "?")) for side in ("source", "target")]
    try:
        licence = load_card(recipe.model_dump()["data"].get("card", "")).licence
    except DataError:
        licence = "not known: the corpus has no card"
    sections = {
        "Model": [
            f"{kind}, trained with {maps} by phmctl; {here}",
            f"form: {to}{f', {quantize}' if quantize else ''}",
            f"from: run `{described['run']}`, checkpoint {described['checkpoint']}, exported by phmctl {__version__}",
            f"use: {use}",
            f"parameters as trained: {totals.parameters:,}; without embeddings {inner.parameters:,}",
            f"parameters of its dense twin: {totals.dense:,}; without embeddings {inner.dense:,}",
        ],
        "Data": [
            f"corpus: {data.get('corpus', '')}",
            f"labels: {', '.join(data['labels'])}" if "labels" in data else f"languages: {' to '.join(languages)}",
            f"licence of the data: {licence}",
            "sizes, cleaning and tokens: `data.json`",
        ],
        "Scores of the run": [*_scores(run)] or ["none are recorded; measure them with: phmctl eval"],
        "This export against the run": [f"verified: {found}", *([found.score_words] if found.scores else [])],
    }
    lines = [f"# {recipe.name}, {recipe.variant}", *(["", recipe.description] if recipe.description else [])]
    for title, items in sections.items():
        lines += ["", f"## {title}", "", *(f"- {item}" for item in items)]
    return "\n".join(lines) + "\n"


def _scores(run: Run) -> Iterator[str]:
    for result in read_results(run):
        if result.against:  # the same scores stand in a result without the comparison
            continue
        signatures = {score["name"]: score["signature"] for score in result.report.get("scores", ())}
        search = result.settings.get("decoding", {})
        how = [f"checkpoint {result.checkpoint}", *(f"{key} {search[key]}" for key in ("beam", "alpha") if search)]
        for metric in kind_of(run.recipe).metrics:
            signature = f" ({signatures[metric.name]})" if metric.name in signatures else ""
            value = metric.scale * result.scores[metric.name]
            yield f"{result.split}: {metric.name} {value:.2f}{signature}, {', '.join(how)}"


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
        rows = [
            ("from", f"{manifest['run']}, {manifest['checkpoint']}"),
            ("files", f"{len(manifest['files'])}, {total / 1e6:.1f} MB"),
            ("verified", str(found)),
            *([("greedy", found.score_words)] if found.scores else []),
        ]
        yield Table(f"{self.export.folder}: {self.export.name}", ["", "export"], rows, text=[1])


def export(
    run: Run,
    to: str,
    output: Path,
    *,
    checkpoint: str = "auto",
    quantize: str | None = None,
    force: bool = False,
    texts: int | None = None,
) -> Exported:
    """Export a run's model; where that fails, nothing is left and what stood there stands.

    `quantize` is CTranslate2's type (float32 where None); `texts` how many of the run's own validation texts are
    compared (None: all).

    UserError: the format cannot express the model; OutputError: the folder would be overwritten; PhmctlError: the
    export does not answer as the run does.
    """
    check_known("format", to, FORMATS)
    check_quantize(to, quantize)
    target = output.resolve()
    restore_replaced(target)
    _check_output(output, force=force)
    subject = open_subject(run, checkpoint)
    with writing(output), replacing(target) as folder:
        _copy_run(run, folder)
        _write(subject, to, quantize or EXACT, folder)
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


def _write(subject: Subject, to: str, quantize: str, folder: Path) -> None:
    """Write the weights in a format; UserError: it cannot express the model."""
    if to == CTRANSLATE2:
        if not subject.translates:
            raise UserError("CTranslate2 runs translators, not this classifier; export it --to onnx or safetensors")
        write_ctranslate2(subject.form, subject.tokenizers, quantize, subject.longest, folder)
    elif to == ONNX:
        write_onnx(subject.form, folder)
    elif to == HUGGINGFACE:
        write_huggingface(subject, folder)
    else:
        has_rules = subject.section.dimension > 1 and subject.section.algebra not in TWO_FACTORS
        write_plain(subject.form, subject.model if has_rules else None, folder)


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
        found = verify_huggingface(subject, folder, texts)
    elif isinstance(ours, Translator):
        engine = open_engine(to, folder, subject.section, subject.tokenizers, quantize=quantize, device="cpu")
        found = verify_translator(subject, engine, texts)
    else:
        theirs = copy(ours)
        theirs.model = exported_model(to, folder, device="cpu")
        found = verify_classifier(subject, theirs, texts)
    if found.different and (to != CTRANSLATE2 or quantize == EXACT):
        raise PhmctlError(
            f"the export to {to} answers {found.different} of {found.texts} texts of {found.split} otherwise than the "
            "run, and not by a tie; it was not written. This is a fault of phmctl or of the engine"
        )
    return found
