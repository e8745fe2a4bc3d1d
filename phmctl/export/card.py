"""Write the model card of an export, ``README.md``."""

from collections.abc import Iterator, Mapping
from typing import Any

from phmctl.algebra.dimension import LOW_RANK
from phmctl.answering.base import Document
from phmctl.answering.opening import COMPACT
from phmctl.data import EOS, PAD
from phmctl.data.card import load_card
from phmctl.data.tokenizer import JOINT_FILE
from phmctl.errors import DataError
from phmctl.recipe.schema import ClassificationRecipe, TranslationRecipe
from phmctl.results.ledger import ledger_for
from phmctl.runs import Run
from phmctl.runs.copies import load_cleaning
from phmctl.runs.results import read_results
from phmctl.tasks import task_of, trains
from phmctl.version import __version__

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


def model_card(run: Run, sizes: Mapping[str, int], description: Document, verified: list[str]) -> str:
    """Return the text of a model card.

    Args:
        sizes: of the vocabularies and the label set.
        description: the export's manifest.
        verified: lines on the comparison with the run.
    """
    recipe, data = run.recipe, run.data()
    section: Any = recipe.model
    target_format = ", ".join(str(description[key]) for key in ("to", "quantize") if key in description)
    size = f"rank {section.rank}" if section.algebra == LOW_RANK else f"n = {section.n}"
    maps = "dense maps" if section.algebra == "real" else f"{section.algebra} maps with {size}"
    is_translator = isinstance(recipe, TranslationRecipe)
    model = "encoder-decoder Transformer" if is_translator else f"classifier ({section.kind})"
    ledger = ledger_for(task_of(recipe), section, sizes)
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
        "This export compared with the run": verified,
    }
    if not is_translator:
        sections["Input and output"] = list(_classifier_interface(run, data["labels"]))
    lines = [f"# {recipe.name}, {recipe.variant}"]
    if recipe.description:
        lines += ["", recipe.description]
    for title, items in sections.items():
        lines += ["", f"## {title}", "", *(f"- {item}" for item in items)]
    return "\n".join(lines) + "\n"


def size_words(sizes: Mapping[str, int]) -> str:
    """Return the bytes of an export, the run and the dense twin in words: ``0.96 MB, 20 % of the dense ...``."""
    weights, run, dense = (sizes[name] / 1e6 for name in ("weights", "run_float32", "dense_float32"))
    share = f"{weights / dense:.0%} of the dense float32 model ({dense:.2f} MB)"
    return f"{weights:.2f} MB, {share}; the run's parameters: {run:.2f} MB"


def _scores(run: Run) -> Iterator[str]:
    for result in read_results(run):
        signatures = {score["name"]: score["signature"] for score in result.report.get("scores", ())}
        search = result.settings.get("decoding", {})
        settings = [f"checkpoint {result.checkpoint}", *(f"{key} {search[key]}" for key in ("beam", "alpha") if search)]
        for metric in trains(run.recipe).metrics:
            signature = f" ({signatures[metric.name]})" if metric.name in signatures else ""
            value = metric.scale * result.scores[metric.name]
            yield f"{result.split}: {metric.name} {value:.2f}{signature}, {', '.join(settings)}"


def _classifier_interface(run: Run, labels: list[str]) -> Iterator[str]:
    """Yield the steps from a text to a classifier's ids, and from logits to a label."""
    cleaning, recipe = load_cleaning(run), run.recipe_of(ClassificationRecipe)
    text = "HTML entities (`&amp;`) are decoded; " if cleaning.entities == "decode" else ""
    text += "white space at both ends is removed"
    if cleaning.normalise:
        text += "; Unicode is normalised to NFC, and each run of white space becomes one space"
    end = "first" if cleaning.keep == "start" else "last"
    sides = "`first` and `second` (batch, length)" if recipe.model.kind == "lstm-pair" else "`first` (batch, length)"
    yield f"text: {text}"
    yield f"ids: `tokenizers.Tokenizer.from_file('tokenizer/{JOINT_FILE}').encode(text).ids`, no start or end token"
    yield f"length: the {end} {recipe.data.max_tokens} ids; an empty text is the id {EOS}"
    yield f"padding: id {PAD}, after the ids, up to the longest text of the batch"
    yield f"input: {sides}, int64; output: `logits` (batch, {len(labels)}), float32"
    yield f"order of the logits: {', '.join(f'{number}: {label}' for number, label in enumerate(labels))}"
