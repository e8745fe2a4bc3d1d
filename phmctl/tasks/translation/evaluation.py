"""Translate a split and score the translations.

A run's ``results/`` gets the translations (``.hyp``, one a line), a record of their origin (``.decoding.json``; they
are translated again if it differs) and the scores (``.json``); with a baseline, another file holds the comparison. The
baseline's folder is only read: translations that it lacks are stored with the system's results, as
``against.<baseline>.….hyp``.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import Table, note, progress, warn
from phmctl.decoding.loading import load_translator
from phmctl.decoding.search import change_decoding
from phmctl.errors import RunError
from phmctl.exports import Export, decoding_of_export
from phmctl.files import read_sealed, sha256_text, write_atomic, write_sealed
from phmctl.metrics import text as scoring
from phmctl.metrics.classification import part_name, parts
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.copies import load_cleaning, load_tokenizers, read_text
from phmctl.runs.results import ScoringKey, file_name_part, write_result
from phmctl.tasks.answers import ONE_SEED, p_words, within
from phmctl.tasks.base import LoadRequest, ScoreRequest
from phmctl.tasks.translation.text import Text, bleu_tokenizer, note_unknown_languages, text_of, text_of_files

if TYPE_CHECKING:
    from phmctl.metrics.significance import Difference

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
    against: str | None = None  # name of the baseline
    paired_bootstrap: Mapping[str, "Difference"] = field(default_factory=dict)  # from the baseline, by metric

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
        if self.against:
            columns = ["metric", "baseline", "this run", "difference", "p"]
            cells = [_comparison_cells(name, test) for name, test in self.paired_bootstrap.items()]
            yield Table(f"paired bootstrap against {self.against} (95 % interval); {ONE_SEED}", columns, cells)


def _comparison_cells(metric: str, test: "Difference") -> list[str]:
    scores = [within(score.value, max(score.low, 0.0), score.high) for score in (test.baseline, test.system)]
    change = test.difference
    return [metric, *scores, within(change.value, change.low, change.high, "+.2f"), p_words(test.p_value)]


def evaluate(request: TranslationScoreRequest) -> Evaluation:
    """Score a run's translations and write the scores into the run. Raises RunError, DataError, UserError."""
    run = request.run
    baseline = request.against
    decoding = request.decoding(run)
    has_files = request.source is not None or bool(request.reference)
    text = text_of_files(run, request.source, request.reference) if has_files else text_of(run, request.split)
    references, *other_references = text.references
    if baseline is not None and not has_files and read_text(baseline, request.split, "target") != references:
        raise RunError(
            f"{baseline.folder} has other {request.split} references than {run.folder}; their scores do not compare"
        )
    if scoring.looks_tokenised(references):
        note(f"the {text.name} references are tokenised text: the scores do not compare with those of raw text")
    lowercase = load_tokenizers(run).target.lowercase if request.lowercase is None else request.lowercase
    recipe = run.recipe_of(TranslationRecipe)
    tokenize = request.tokenize or bleu_tokenizer(recipe, run.data())
    if not (request.tokenize or recipe.training.bleu_tokenizer):
        note_unknown_languages(run.data().get("target_language"))
    scoring.check_tokenizer(tokenize)
    options: scoring.ScoreOptions = {"lowercase": lowercase, "tokenize": tokenize, "other_references": other_references}
    translations = _translations(run, text, request, decoding)
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
    scoring_key = replace(key, settings=settings)
    path = key.path(run, "hyp")
    write_result(run, scoring_key, evaluation.as_json(), path)
    if baseline is None:
        return evaluation
    baseline_decoding = decoding_of_export(decoding) if isinstance(baseline, Export) else decoding
    baseline_translations = _translations(baseline, text, request, baseline_decoding)
    tests = scoring.paired_bootstrap(baseline_translations.lines, hypotheses, references, **options)
    evaluation = replace(evaluation, against=baseline.name, paired_bootstrap=tests)
    comparison_key = scoring_key.against(baseline.name, baseline_translations.key.weights)
    write_result(run, comparison_key, evaluation.as_json(), path)
    return evaluation


@dataclass(frozen=True)
class _Translations:
    key: ScoringKey
    lines: list[str]
    seconds: float  # duration of the search


def _translations(run: Run, text: Text, request: TranslationScoreRequest, decoding: DecodingSection) -> _Translations:
    """Return the stored translations of the system or its baseline, or translate and store them."""
    is_baseline = run is not request.run
    if is_baseline:  # the baseline reads text that is cleaned like its own training data
        if not text.origin:
            text = text_of(run, request.split)
        elif load_cleaning(run) != load_cleaning(request.run):
            text = text_of_files(run, request.source, request.reference)
    lines = text.source
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
        paths = [key.path(run, "hyp")]
        if is_baseline:
            paths.append(request.run.results_folder / f"against.{file_name_part(run.name)}.{paths[0].name}")
        for path in paths:
            stored = _stored_translations(path, key, source_sha256)
            if stored is not None:
                return stored
        translator = load_translator(run, checkpoint, request.device, decoding, cleaned=True)
        began = time.perf_counter()
        with progress(f"decoding {len(lines):,} lines with {run.name}", len(lines)) as advance:
            translated = [line for line, _ in translator.answer(lines, advance=advance)]
        translations = _Translations(key, translated, round(time.perf_counter() - began, 3))
        _store_translations(paths[-1], translations, source_sha256)
        return translations

    return run.load_checkpoint(request.checkpoint, find_or_translate)


def _stored_translations(path: Path, key: ScoringKey, source_sha256: str) -> _Translations | None:
    """Return stored translations; None if they are missing, damaged, or of another source."""
    with suppress(RunError, OSError, ValueError, LookupError):
        origin = read_sealed(path.with_suffix(_ORIGIN), RunError, "")
        content = path.read_bytes().decode("utf-8")
        digests = source_sha256, sha256_text([content])
        if (origin["source_sha256"], origin["hypotheses_sha256"]) == digests:
            return _Translations(key, content.split("\n")[:-1], origin["seconds"])
    return None


def _store_translations(path: Path, translations: _Translations, source_sha256: str) -> None:
    key = translations.key
    content = "".join(f"{line}\n" for line in translations.lines)
    write_atomic(path, content)
    origin = {"checkpoint": key.weights.name, "checkpoint_sha256": key.weights.sha256, **key.settings}
    origin |= {"source_sha256": source_sha256, "hypotheses_sha256": sha256_text([content])}
    origin["seconds"] = translations.seconds
    write_sealed(path.with_suffix(_ORIGIN), origin)
