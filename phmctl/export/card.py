"""The model card of an export, in Markdown: what it is, its data, its scores, its size, its licence."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from phmctl import __version__
from phmctl.accounting.ledger import ledger_for
from phmctl.data.card import load_card
from phmctl.dimension import LOW_RANK
from phmctl.errors import DataError
from phmctl.export.subject import Subject
from phmctl.export.verify import Verification
from phmctl.runs import Run
from phmctl.runs.results import read_results
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
    lines = [f"# {recipe.name}, {recipe.variant}", ""]
    lines += [recipe.description, ""] if recipe.description else []
    lines += [
        f"- model: {kind}, trained with {maps} by phmctl; here each map is a plain matrix",
        f"- form: {to}{f', {quantize}' if quantize else ''}",
        f"- from: run `{described['run']}`, checkpoint {described['checkpoint']}, exported by phmctl {__version__}",
        f"- use: {_USE[to]}",
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
        f"- of the dense twin that this export holds: {totals.dense:,}; without embeddings {inner.dense:,}",
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
