"""Translate a split and score the translations.

A run's ``results/`` gets the translations (``.hyp``, one per line), a record of their source (``.decoding.json``; the
source is translated again if it has changed) and the scores (``.json``).
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from phmctl.console import Table, note, progress, warn
from phmctl.decoding.loading import load_translator
from phmctl.decoding.search import change_decoding
from phmctl.errors import RunError
from phmctl.files import read_json_object, sha256_text, write_atomic, write_json
from phmctl.metrics import text as scoring
from phmctl.metrics.classification import part_name, parts
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.copies import load_tokenizers
from phmctl.runs.results import ScoringKey, write_result
from phmctl.tasks.base import LoadRequest, ScoreRequest
from phmctl.tasks.translation.text import Text, bleu_tokenizer, note_unknown_languages, text_of, text_of_files

_ORIGIN = ".decoding.json"


@dataclass(frozen=True, kw_only=True)
class SearchOptions:
    """Settings of the search that replace the recipe's; None keeps the recipe's."""

    beam: int | None = None
    alpha: float | None = None
    batch_tokens: int | None = None
    precision: str | None = None

    def decoding(self, run: Run) -> DecodingSection:
        """Return the settings of the search for a run. Raises RecipeError."""
        return change_decoding(
            run.recipe_of(TranslationRecipe).decoding,
            beam=self.beam,
            alpha=self.alpha,
            batch_tokens=self.batch_tokens,
            precision=self.precision,
        )


@dataclass(frozen=True, kw_only=True)
class TranslatorRequest(SearchOptions, LoadRequest):
    """A request for a translator."""

    n_best: int | None = None  # translations of a line; None: the best one, without number and score
    strict: bool = False  # raise an error for over-long lines


@dataclass(frozen=True, kw_only=True)
class TranslationScoreRequest(SearchOptions, ScoreRequest):
    """A request to score translations."""

    lowercase: bool | None = None  # None: as the tokenizer of the target
    tokenize: str | None = None  # BLEU's tokenizer; None: the recipe's or the language's
    source: Path | str | None = None  # text in place of a split
    reference: list[str] | None = None  # its references


@dataclass(frozen=True)
class Evaluation:
    """The scores of a run on a split."""

    run: str  # its name
    split: str  # name of the split or the file; ``file-test`` of a file named like a split
    checkpoint: str  # name of the checkpoint's folder
    decoding: DecodingSection  # settings of the search
    sentences: int  # number of scored sentences
    decoding_seconds: float  # duration of the search when the translations were made
    scores: list[scoring.Score]  # BLEU, chrF and TER
    copy: scoring.Copy  # score of the source as its own translation
    bleu_by_source_length: list[scoring.Bin]
    bleu_by_extra: Mapping[str, list[scoring.Bin]]  # by the values of each extra of the corpus

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "decoding": self.decoding.model_dump()}

    def tables(self) -> Iterator[Table]:
        decoding = self.decoding
        title = f"{self.run}, {self.split}: {self.sentences:,} sentences, checkpoint {self.checkpoint}, "
        title += f"beam {decoding.beam}, alpha {decoding.alpha}"
        title += f", {decoding.precision}" if decoding.precision else ""
        below = [f"{self.copy}"] if self.copy.one_language else []
        below += [f"{score.name}: {score.signature}" for score in self.scores]  # too long for a column
        scores = [(score.name, f"{score.value:.2f}") for score in self.scores]
        yield Table(title, ["metric", "score"], scores, below=below)
        for name, bins in {"words of the source": self.bleu_by_source_length, **self.bleu_by_extra}.items():
            rows = [(part_name(part.value), part.sentences, f"{part.bleu:.2f}") for part in bins]
            yield Table(f"BLEU by {name}", [name, "sentences", "BLEU"], rows)


def evaluate(request: TranslationScoreRequest) -> Evaluation:
    """Score a run's translations and write the scores into the run. Raises RunError, DataError, UserError."""
    run = request.run
    decoding = request.decoding(run)
    has_files = request.source is not None or bool(request.reference)
    text = text_of_files(run, request.source, request.reference) if has_files else text_of(run, request.split)
    references, *other_references = text.references
    if scoring.looks_tokenised(references):
        note(f"the {text.name} references are tokenised text: the scores do not compare with those of raw text")
    lowercase = load_tokenizers(run).target.lowercase if request.lowercase is None else request.lowercase
    recipe = run.recipe_of(TranslationRecipe)
    tokenize = request.tokenize or bleu_tokenizer(recipe, run.data())
    if not (request.tokenize or recipe.training.bleu_tokenizer):
        note_unknown_languages(run.data().get("target_language"))
    scoring.check_tokenizer(tokenize)
    options: scoring.ScoreOptions = {"lowercase": lowercase, "tokenize": tokenize, "other_references": other_references}
    translations = _translations(text, request, decoding)
    hypotheses, key = translations.lines, translations.key
    for remark in scoring.remarks(text.source, hypotheses, equal_share=0.5):
        warn(f"{run.name}, {key.weights.name}: {remark}")

    def bleu_by(groups: Any) -> list[scoring.Bin]:
        return scoring.bleu_by(groups, hypotheses, references, **options)

    evaluation = Evaluation(
        run.name,
        text.name,
        key.weights.name,
        decoding,
        sentences=len(references),
        decoding_seconds=translations.seconds,
        scores=scoring.all_scores(hypotheses, references, **options),
        copy=scoring.copy_baseline(text.source, references, **options),
        bleu_by_source_length=bleu_by(scoring.length_parts(text.source)),
        bleu_by_extra={name: bleu_by(parts(values)) for name, values in text.extras.items()},
    )
    settings = {**key.settings, **text.origin, "lowercase": lowercase}
    if tokenize != scoring.USUAL:
        settings["tokenize"] = tokenize
    write_result(run, replace(key, settings=settings), evaluation.as_json(), key.path(run, "hyp"))
    return evaluation


@dataclass(frozen=True)
class _Translations:
    key: ScoringKey
    lines: list[str]
    seconds: float  # duration of the search


def _translations(text: Text, request: TranslationScoreRequest, decoding: DecodingSection) -> _Translations:
    """Return the stored translations of a text, or translate and store them."""
    run, lines = request.run, text.source
    source_sha256 = sha256_text(f"{line}\n" for line in lines)

    def find_or_translate(checkpoint: str) -> _Translations:
        settings: dict[str, Any] = {
            "decoding": decoding.model_dump(exclude=keys_changing(decoding, NOTHING), exclude_none=True)
        }
        if "source_sha256" in text.origin:
            settings["source_sha256"] = text.origin["source_sha256"]
        label = f"beam-{decoding.beam}.alpha-{decoding.alpha:g}"
        if decoding.precision:
            label += f".{decoding.precision}"
        key = ScoringKey(text.name, run.weights(checkpoint), settings, label)
        path = key.path(run, "hyp")
        stored = _stored_translations(path, key, source_sha256)
        if stored is not None:
            return stored
        translator = load_translator(run, checkpoint, request.device, decoding, cleaned=True)
        began = time.perf_counter()
        with progress(f"decoding {len(lines):,} lines with {run.name}", len(lines)) as advance:
            translated = [line for line, _ in translator.answer(lines, advance=advance)]
        seconds = round(time.perf_counter() - began, 3)
        write_atomic(path, "".join(f"{line}\n" for line in translated))
        write_json(path.with_suffix(_ORIGIN), {"source_sha256": source_sha256, "seconds": seconds})
        return _Translations(key, translated, seconds)

    return run.load_checkpoint(request.checkpoint, find_or_translate)


def _stored_translations(path: Path, key: ScoringKey, source_sha256: str) -> _Translations | None:
    """Return stored translations; None if they are missing, incomplete, or of another source."""
    with suppress(RunError, OSError, ValueError, LookupError):
        origin = read_json_object(path.with_suffix(_ORIGIN), RunError, "")
        if origin["source_sha256"] == source_sha256:
            return _Translations(key, path.read_bytes().decode("utf-8").split("\n")[:-1], float(origin["seconds"]))
    return None
