"""``export``: a run's model in the form of another engine, verified before it gets its name; its model card."""

import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from phmctl import __version__
from phmctl.accounting.ledger import ledger_for
from phmctl.console import Table
from phmctl.data.card import load_card
from phmctl.decoding.translator import Translator, open_engine
from phmctl.dimension import LOW_RANK, TWO_FACTORS
from phmctl.errors import DataError, OutputError, PhmctlError, UserError, check_known
from phmctl.export import EXACT, check_options
from phmctl.export.dense import write_plain
from phmctl.export.verify import IDS, Subject, Verification, open_subject, verify_classifier, verify_translator
from phmctl.exports import CTRANSLATE2, FORMAT, FORMATS, HUGGINGFACE, ONNX, Export
from phmctl.files import clear, replacing, write_atomic, writing
from phmctl.runs import DATA, EXPORT, RECIPE, Run
from phmctl.runs.results import read_results
from phmctl.sealed import seal
from phmctl.tasks.classification.task import exported_model
from phmctl.tasks.registry import kind_of

_USE = {
    "ctranslate2": "phmctl decode DIR, or CTranslate2 itself: the model's files are in `model/`.",
    "onnx": "phmctl decode DIR, or any ONNX runtime: `phmctl.decoding.onnx_engine` says what the graphs take.",
    "safetensors": "phmctl decode DIR, or `load(DIR)` of `plain.py` in this folder, which wants torch alone.",
    "huggingface": "the transformers library: AutoTokenizer and AutoModelForSeq2SeqLM, `from_pretrained(DIR)`.",
}


def model_card(subject: Subject, described: Mapping[str, Any], found: Verification) -> str:
    run, section = subject.run, subject.section
    recipe, to, quantize = run.recipe, described["to"], described.get("quantize")
    number = f"rank {section.rank}" if section.algebra == LOW_RANK else f"n = {section.dimension}"
    maps = "dense maps" if section.algebra == "real" else f"{section.algebra} maps with {number}"
    kind = "encoder-decoder Transformer" if subject.translates else f"classifier ({section.kind})"
    ledger = ledger_for(kind_of(recipe), section, subject.sizes)
    totals, inner = ledger.totals, ledger.without_embeddings
    here, use = "here each map is a plain matrix", _USE[to]
    size = f"- of the dense twin that this export holds: {totals.dense:,}; without embeddings {inner.dense:,}"
    if found.compared == IDS:  # the tokenizer alone
        here = "its tokenizer is here, the model is not"
        use = "the transformers library: AutoTokenizer, `from_pretrained(DIR)`."
        size = f"- of its dense twin, which is not here: {totals.dense:,}; without embeddings {inner.dense:,}"
    lines = [f"# {recipe.name}, {recipe.variant}", ""]
    lines += [recipe.description, ""] if recipe.description else []
    lines += [
        f"- model: {kind}, trained with {maps} by phmctl; {here}",
        f"- form: {to}{f', {quantize}' if quantize else ''}",
        f"- from: run `{described['run']}`, checkpoint {described['checkpoint']}, exported by phmctl {__version__}",
        f"- use: {use}",
    ]
    lines += [f"- labels: {', '.join(subject.labels)}"] if subject.labels else []
    lines += ["", "## Data", "", *_data(run)]
    lines += ["", "## Scores of the run", ""]
    lines += [*_scores(run)] or ["none are recorded; measure them with: phmctl eval"]
    lines += ["", "## This export against the run", "", f"- verified: {found}"]
    if found.scores:
        of = f" ({found.scores['signature']})" if "signature" in found.scores else ""
        lines.append(f"- {found.scores['metric']}{of}: {found.score_words}")
    lines += [
        *("", "## Parameters", ""),
        f"- trained: {totals.parameters:,}; without embeddings {inner.parameters:,}",
        size,
    ]
    return "\n".join(lines) + "\n"


def _data(run: Run) -> Iterator[str]:
    data, settings = run.data(), run.data().get("settings", {})
    name = run.recipe.model_dump()["data"].get("card", "")
    yield f"- corpus: {data.get('corpus', name)}"
    if "source_language" in data:
        yield f"- languages: {data['source_language']} to {data['target_language']}"
    if "origin" in data:
        yield f"- origin: {data['origin']}"
    for split, counts in data.get("splits", {}).items():
        if isinstance(counts, dict) and "kept" in counts:
            yield f"- {split}: {counts['kept']:,} examples"
    if "tokenizer" in settings:
        yield f"- tokens: {settings['tokenizer']}, {json.dumps(data.get('token_types', settings.get('vocabulary')))}"
    if "cleaning" in settings:
        yield f"- cleaning: {json.dumps(settings['cleaning'])}"
    try:
        licence = load_card(name).licence
    except DataError:
        licence = "not known: the corpus has no card"
    yield f"- licence of the data: {licence}"


def _scores(run: Run) -> Iterator[str]:
    for result in read_results(run):
        if result.against:  # the same scores stand in a result without the comparison
            continue
        where, decoding = f"checkpoint {result.checkpoint}", result.settings.get("decoding", {})
        for score in result.report.get("scores", ()):
            search = f"beam {decoding.get('beam')}, alpha {decoding.get('alpha')}"
            value = f"{score['name']} {score['value']:.2f} ({score['signature']})"
            yield f"- {result.split}: {value}, {where}, {search}"
        for split in result.report.get("splits", ()):
            right, total = split["accuracy"]["right"], split["accuracy"]["total"]
            yield f"- {split['split']}: accuracy {right / total:.2%} of {total:,} examples, {where}"


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
