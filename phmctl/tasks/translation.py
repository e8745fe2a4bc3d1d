"""The task ``translation``: sentence pairs or style transfer, Transformers, beam search and BLEU.

``eval`` translates a split or files and scores the translations. It writes the translations (``.hyp``, one per line),
the digest of the source (``.decoding.json``) and the scores (``.json``) into a run's ``results/``. The same source is
not translated again.
"""

from __future__ import annotations  # torch is imported by the functions that need it

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path

from phmctl.answering.base import change_decoding
from phmctl.answering.opening import Source, load_translator
from phmctl.answering.translator import Translator
from phmctl.console import Table, note, progress
from phmctl.data.readers import guess_format, read_sentences
from phmctl.data.rows import clean_line
from phmctl.errors import DataError, RunError, UserError
from phmctl.metrics import text as scoring
from phmctl.metrics.classification import ItemGroup, part_name, parts
from phmctl.recipe.models import NOTHING, TransformerSection
from phmctl.recipe.schema import DecodingSection, TranslationRecipe, keys_changing
from phmctl.runs import AUTO
from phmctl.runs.copies import ADVICE, EXTRAS, load_cleaning, load_tokenizers, read_text
from phmctl.runs.results import Result, ScoringKey, write_record, write_result
from phmctl.storage import read_json_object, sha256_text
from phmctl.tasks.base import Answering, Answers, Metric, Task, TaskSpec, TextComparer, Trains, text_sizes

_ORIGIN = ".decoding.json"


@dataclass(frozen=True)
class Text:
    """Sentences and references to score: a split of the run's own text, or files."""

    name: str  # split or file
    source: Sequence[str]
    references: Sequence[Sequence[str]]  # each with a line for each sentence
    extras: Mapping[str, Sequence[int]] = field(default_factory=dict)  # numbers for breakdowns, -1 if not known
    origin: Mapping[str, object] = field(default_factory=dict)  # SHA-256 of files, for the key of the result


def text_of(run: Source, split: str) -> Text:
    """Return a split of the run's own text. Raises RunError."""
    source = read_text(run, split, "source")
    target = read_text(run, split, "target")
    path = run.text_path(f"{split}{EXTRAS}")
    extras: dict[str, list[int]] = {}
    if path.is_file():
        extras = read_json_object(path, RunError, ADVICE)
    return Text(split, source, [target], extras)


def text_of_files(run: Source, source: Path | str | None, references: Sequence[Path | str] | None) -> Text:
    """Return the text of files, cleaned like the run's own text. Raises DataError."""
    if source is None or not references:
        raise DataError("your own text needs both a source and a reference, or several references")
    cleaning = load_cleaning(run)
    paths = [Path(source), *map(Path, references)]
    texts = [[clean_line(line, cleaning) for line in read_sentences(path, guess_format(path))] for path in paths]
    for path, lines in zip(paths[1:], texts[1:], strict=True):
        if len(lines) != len(texts[0]) or not lines:
            raise DataError(f"{source} has {len(texts[0]):,} lines, and {path} has {len(lines):,}")
    source_sha256, *reference_sha256 = (sha256_text(f"{line}\n" for line in lines) for lines in texts)
    name = paths[0].name
    if name in ("test", "valid", *run.splits()):
        name = f"file-{name}"  # a split's name means the run's own text
    origin = {"source_sha256": source_sha256, "references_sha256": reference_sha256}
    return Text(name, texts[0], texts[1:], origin=origin)


@dataclass(frozen=True)
class Evaluation:
    """The scores of a run on a split."""

    run: str  # name of the run
    split: str  # name of the split or the file, or ``file-test`` for a file that is named like a split
    checkpoint: str  # name of the checkpoint's folder
    decoding: DecodingSection  # settings of the search
    sentences: int  # number of scored sentences
    decoding_seconds: float  # duration of the search when the translations were made
    scores: list[scoring.CorpusScore]  # BLEU, chrF and TER
    copy: scoring.Copy  # score of the untranslated source
    bleu_by_source_length: list[scoring.Bin]
    bleu_by_extra: Mapping[str, list[scoring.Bin]]  # by the values of each extra of the corpus

    def as_json(self) -> dict[str, object]:
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


def evaluate(
    run: Source,
    split: str = "test",
    checkpoint: str = AUTO,
    device: str = "auto",
    *,
    beam: int | None = None,
    alpha: float | None = None,
    batch_tokens: int | None = None,
    precision: str | None = None,
    lowercase: bool | None = None,
    tokenize: str | None = None,
    source: Path | str | None = None,
    reference: Sequence[Path | str] = (),
) -> Evaluation:
    """Score a run's translations and write the scores into the run.

    Args:
        beam, alpha, batch_tokens, precision: settings of the search. None means the recipe's.
        lowercase: score in lower case. None means as the tokenizer of the target.
        tokenize: BLEU's tokenizer. None means the recipe's or the language's.
        source: file to score instead of a split, with the files of references `reference`.

    Raises RunError, RecipeError, DataError, UserError.
    """
    recipe = run.recipe_of(TranslationRecipe)
    decoding = change_decoding(recipe.decoding, beam=beam, alpha=alpha, batch_tokens=batch_tokens, precision=precision)
    has_files = source is not None or bool(reference)
    text = text_of_files(run, source, reference) if has_files else text_of(run, split)
    references, *other_references = text.references
    if scoring.looks_tokenised(references):
        note(f"the {text.name} references are tokenised text: the scores do not compare with those of raw text")
    if lowercase is None:
        lowercase = load_tokenizers(run).target.lowercase
    tokenize = tokenize or recipe.training.bleu_tokenizer
    if not tokenize:
        tokenize = scoring.usual_tokenizer(run.data().get("target_language"))
    scoring.check_tokenizer(tokenize)
    options: scoring.ScoreOptions = {"lowercase": lowercase, "tokenize": tokenize, "other_references": other_references}
    key, hypotheses, seconds = _translations(run, text, run.chosen(checkpoint), device, decoding)

    def bleu_by(groups: Sequence[ItemGroup]) -> list[scoring.Bin]:
        return scoring.bleu_by(groups, hypotheses, references, **options)

    evaluation = Evaluation(
        run.name,
        text.name,
        key.weights.name,
        decoding,
        sentences=len(references),
        decoding_seconds=seconds,
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


def _translations(
    run: Source, text: Text, checkpoint: str, device: str, decoding: DecodingSection
) -> tuple[ScoringKey, list[str], float]:
    """Return the key, the stored or new translations of a text, and the seconds of the search."""
    settings: dict[str, object] = {
        "decoding": decoding.model_dump(exclude=keys_changing(decoding, NOTHING), exclude_none=True)
    }
    if "source_sha256" in text.origin:
        settings["source_sha256"] = text.origin["source_sha256"]
    label = f"beam-{decoding.beam}.alpha-{decoding.alpha:g}"
    if decoding.precision:
        label += f".{decoding.precision}"
    key = ScoringKey(text.name, run.weights(checkpoint), settings, label)
    path = key.path(run, "hyp")
    origin_path = path.with_suffix(_ORIGIN)
    source_sha256 = sha256_text(f"{line}\n" for line in text.source)
    with suppress(RunError, OSError, ValueError, LookupError):  # missing, incomplete, or of another source
        origin = read_json_object(origin_path, RunError, "")
        if origin["source_sha256"] == source_sha256:
            return key, _read_translations(path, text), float(origin["seconds"])
    translator = load_translator(run, checkpoint, device, decoding, cleaned=True)
    began = time.perf_counter()
    with progress(f"decoding {len(text.source):,} lines with {run.name}", len(text.source)) as advance:
        translated = [line for line, _ in translator.answer(text.source, advance=advance)]
    seconds = round(time.perf_counter() - began, 3)
    write_record(path, "".join(f"{line}\n" for line in translated))
    write_record(origin_path, {"source_sha256": source_sha256, "seconds": seconds})
    return key, translated, seconds


def _read_translations(path: Path, text: Text) -> list[str]:
    """Return the stored translations of a text. Raises RunError if lines are missing."""
    lines = path.read_bytes().decode("utf-8").split("\n")[:-1]
    if len(lines) != len(text.source):
        raise RunError(f"{path} has {len(lines):,} lines for {len(text.source):,} sentences: run phmctl eval again")
    return lines


def scored_answers(run: Source, result: Result) -> Answers | None:
    """Return the scored translations of a result. Raises RunError."""
    if result.answers is None or "source_sha256" in result.settings:  # the text of files is not in the run
        return None
    text = text_of(run, result.split)
    translations = _read_translations(result.answers, text)
    options: scoring.ScoreOptions = {
        "lowercase": bool(result.settings["lowercase"]),
        "tokenize": str(result.settings.get("tokenize", scoring.USUAL)),
    }
    return Answers(text.source, text.references[0], translations, text.extras, options)


def load(
    run: Source,
    checkpoint: str = AUTO,
    device: str = "auto",
    *,
    threads: int = 0,
    beam: int | None = None,
    alpha: float | None = None,
    batch_tokens: int | None = None,
    precision: str | None = None,
    n_best: int | None = None,
    strict: bool = False,
) -> Translator:
    settings = change_decoding(
        run.recipe_of(TranslationRecipe).decoding,
        beam=beam,
        alpha=alpha,
        batch_tokens=batch_tokens,
        precision=precision,
    )
    if n_best is not None and n_best > settings.beam:
        raise UserError(f"n_best={n_best} needs a beam at least as large: beam={n_best}")
    return load_translator(run, checkpoint, device, settings, threads=threads, n_best=n_best, strict=strict)


def notes(section: TransformerSection, sizes: Mapping[str, int]) -> Iterator[str]:
    users = ["target"]
    if section.share_embeddings:
        users.insert(0, "source")
    if section.generator == "tied":
        users.append("generator")
    if len(users) > 1:
        yield f"one table serves {', '.join(users[:-1])} and {users[-1]}"


def open_data(recipe: TranslationRecipe, data: Path) -> Task:
    from phmctl.data.prepared import PreparedData
    from phmctl.tasks.translation_training import TranslationTask

    return TranslationTask(recipe, PreparedData.find(recipe.data, data))


_SEARCH = ("beam", "alpha", "batch_tokens", "precision")

TRANSLATION = TaskSpec(
    name="translation",
    commands=("prepare-data", "train", "eval", "decode", "count-params", "bench train"),
    sizes=partial(text_sizes, names=("source", "target"), words="{:,} source and {:,} target token types"),
    tables=lambda sizes: {
        "source_embedding": sizes["source"],
        "target_embedding": sizes["target"],
        "generator": sizes["target"],
    },
    notes=notes,
    trains=Trains(
        open=open_data,
        evaluate=evaluate,
        options=(*_SEARCH, "lowercase", "tokenize", "source", "reference"),
        metrics=(Metric("BLEU", tested=True), Metric("chrF2", tested=True), Metric("TER", higher=False)),
        comparer=TextComparer(),
        scored_answers=scored_answers,
    ),
    answers=Answering(load=load, options=(*_SEARCH, "n_best", "strict")),
)
