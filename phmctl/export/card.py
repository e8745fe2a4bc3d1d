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
    parts = [_what(subject, described), _data(subject.run), _scores(subject.run), _verified(found), _size(subject)]
    return "\n".join(line for part in parts for line in part).rstrip() + "\n"


def _what(subject: Subject, described: Mapping[str, Any]) -> Iterator[str]:
    recipe, section = subject.run.recipe, subject.section
    to, quantize = described["to"], described.get("quantize")
    yield f"# {recipe.name}, {recipe.variant}"
    yield ""
    if recipe.description:
        yield recipe.description
        yield ""
    number = f"rank {section.rank}" if section.algebra == LOW_RANK else f"n = {section.dimension}"
    maps = "dense maps" if section.algebra == "real" else f"{section.algebra} maps with {number}"
    kind = "encoder-decoder Transformer" if subject.translates else f"classifier ({section.kind})"
    yield f"- model: {kind}, trained with {maps} by phmctl; here each map is a plain matrix"
    yield f"- form: {to}{f', {quantize}' if quantize else ''}"
    yield f"- from: run `{described['run']}`, checkpoint {described['checkpoint']}, exported by phmctl {__version__}"
    yield f"- use: {_USE[to]}"
    if subject.labels:
        yield f"- labels: {', '.join(subject.labels)}"
    yield ""


def _data(run: Run) -> Iterator[str]:
    data = run.data()
    name = run.recipe.model_dump()["data"].get("card", "")
    yield "## Data"
    yield ""
    yield f"- corpus: {data.get('corpus', name)}"
    if "source_language" in data:
        yield f"- languages: {data['source_language']} to {data['target_language']}"
    if "origin" in data:
        yield f"- origin: {data['origin']}"
    for split, counts in data.get("splits", {}).items():
        if isinstance(counts, dict) and "kept" in counts:
            yield f"- {split}: {counts['kept']:,} examples"
    settings = data.get("settings", {})
    if "tokenizer" in settings:
        yield f"- tokens: {settings['tokenizer']}, {json.dumps(data.get('token_types', settings.get('vocabulary')))}"
    if "cleaning" in settings:
        yield f"- cleaning: {json.dumps(settings['cleaning'])}"
    yield f"- licence of the data: {_licence(name)}"
    yield ""


def _licence(card: str) -> str:
    try:
        return load_card(card).licence
    except DataError:
        return "not known: the corpus has no card"


def _scores(run: Run) -> Iterator[str]:
    yield "## Scores of the run"
    yield ""
    found = list(_score_lines(run))
    yield from found or ["none are recorded; measure them with: phmctl eval"]
    yield ""


def _score_lines(run: Run) -> Iterator[str]:
    for result in read_results(run):
        where = f"checkpoint {result.checkpoint}"
        decoding = result.settings.get("decoding", {})
        if result.against and result.version:  # the same scores stand in a result without the comparison
            continue
        for score in result.report.get("scores", ()):
            search = f"beam {decoding.get('beam')}, alpha {decoding.get('alpha')}"
            value = f"{score['name']} {score['value']:.2f} ({score['signature']})"
            yield f"- {result.split}: {value}, {where}, {search}"
        for split in result.report.get("splits", ()):
            share = split["accuracy"]
            right, total = share["right"], share["total"]
            yield f"- {split['split']}: accuracy {right / total:.2%} of {total:,} examples, {where}"


def _verified(found: Verification) -> Iterator[str]:
    yield "## This export against the run"
    yield ""
    yield f"- verified: {found}"
    if found.scores:
        of = f" ({found.scores['signature']})" if "signature" in found.scores else ""
        yield f"- {found.scores['metric']}{of}: {found.score_words}"
    yield ""


def _size(subject: Subject) -> Iterator[str]:
    ledger = ledger_for(kind_of(subject.run.recipe), subject.section, subject.sizes)
    totals, maps = ledger.totals, ledger.without_embeddings
    yield "## Parameters"
    yield ""
    yield f"- trained: {totals.parameters:,}; without embeddings {maps.parameters:,}"
    yield f"- of the dense twin that this export holds: {totals.dense:,}; without embeddings {maps.dense:,}"
