"""Scoring a run: decode a split if that is not done yet, then score it against the raw references.

Into the run's ``results/`` go, for a split, a checkpoint and the search, the translations (``.hyp``, one a line), what
they were made from (``.decoding.json``: they are made anew when any of it differs), and the scores (``.json``); with a
baseline another file, which has the comparison. A baseline's folder is only read: translations that it does not have by
the same settings lie with the system's results, as ``against.<baseline>.….hyp``.
"""

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from phmctl.console import Table, note, progress, warn
from phmctl.data.clean import clean_line, exchanged, words_of
from phmctl.data.copies import ADVICE, load_cleaning, load_tokenizers, read_text, refuse_damaged_copy
from phmctl.data.readers import guess_format, read_sentences
from phmctl.decoding.translator import change_decoding
from phmctl.errors import DataError, RunError, UserError
from phmctl.exports import Export, decoding_of_export
from phmctl.files import read_json_object, sha256_text, write_atomic, write_json
from phmctl.metrics.degenerate import remarks
from phmctl.metrics.text import (
    USUAL,
    Comparison,
    Copy,
    LengthBin,
    Score,
    ValueBin,
    all_scores,
    bleu_by_length,
    bleu_by_value,
    check_tokenizer,
    copy_baseline,
    looks_tokenised,
    paired_bootstrap,
    usual_tokenizer,
)
from phmctl.recipe.models import NOTHING, keys_changing
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.results import Setting, write_result
from phmctl.tasks.answers import ONE_SEED, p_words, signed, within
from phmctl.tasks.base import Asked

if TYPE_CHECKING:
    from phmctl.decoding.translator import Translator

EXTRAS = ".extras"  # of a split in a run: whole numbers of its sentences by name, JSON
_ORIGIN = ".decoding.json"
_NAMES = {  # of an evaluation's fields in its JSON, where they differ
    "seconds": "decoding_seconds",
    "by_length": "bleu_by_source_length",
    "by_value": "bleu_by_extra",
    "comparisons": "paired_bootstrap",
}


@dataclass(frozen=True)
class Text:
    """What is translated and scored: a split of the run's own text, or files that it has never seen."""

    name: str  # the split's, or the file's
    source: Sequence[str]  # its sentences
    references: Sequence[Sequence[str]]  # the right translations, a list of lines for each set of references
    # whole numbers of each sentence by which scores are broken down, by name
    extras: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # what tells files from others of the same name, for the results' settings: their SHA-256
    origin: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_split(cls, run: Run, split: str) -> Self:
        """Return a split that the run keeps. Raises RunError."""
        source, target = (read_text(run, split, side) for side in ("source", "target"))
        if len(source) != len(target):
            raise RunError(f"{run.folder}: {split} has {len(source):,} sources and {len(target):,} targets; {ADVICE}")
        return cls(split, source, [target], read_extras(run, split))


def read_extras(run: Run, split: str) -> dict[str, list[int]]:
    """Return the numbers by which a split's scores are broken down, by name; -1 is not known. Raises RunError."""
    path = run.text_folder / f"{split}{EXTRAS}"
    if not path.is_file():
        return {}
    refuse_damaged_copy(run, path)
    found: dict[str, list[int]] = read_json_object(path, RunError, ADVICE)
    return found


def own_text(run: Run, source: Path | str | None, references: Sequence[Path | str] | None) -> Text | None:
    """Return files as the run's own text is: cleaned as it was; None where none are given. Raises DataError."""
    if source is None and not references:
        return None
    if source is None or not references:
        raise DataError("your own text needs both --source FILE and --reference FILE (repeatable)")
    cleaning = load_cleaning(run)
    paths = [Path(source), *map(Path, references)]
    texts = [[clean_line(line, cleaning) for line in read_sentences(path, guess_format(path))] for path in paths]
    for path, lines in zip(paths[1:], texts[1:], strict=True):
        if len(lines) != len(texts[0]) or not lines:
            raise DataError(f"{source} has {len(texts[0]):,} lines, and {path} has {len(lines):,}")
    for split in run.splits()[:1]:
        usual = [words_of(read_text(run, split, side)) for side in ("source", "target")]
        if exchanged([words_of(lines) for lines in texts[:2]], usual):
            warn(
                f"{source} has the words of the run's target language, and {paths[1]} those of its source language; "
                "are source and reference exchanged?"
            )
    source_sha256, *others = (sha256_text(f"{line}\n" for line in lines) for lines in texts)
    origin = {"source_sha256": source_sha256, "references_sha256": others}
    return Text(paths[0].name, texts[0], texts[1:], origin=origin)


@dataclass(frozen=True)
class Evaluation:
    """The scores of a run on a split.

    Attributes:
        run: the run's name.
        split: ``test`` or ``valid``, or the name of a file.
        checkpoint: the name of the checkpoint's folder.
        decoding: the settings of the search.
        sentences: how many were scored.
        seconds: that the search took when the translations were made; None of an earlier version's.
        scores: BLEU, chrF and TER.
        copy: what copying the source scores.
        by_length: BLEU by source length.
        by_value: BLEU by the values of each extra that the corpus has.
        against: the baseline's name, or None.
        comparisons: the paired bootstrap against the baseline, by metric; empty without one.
    """

    run: str
    split: str
    checkpoint: str
    decoding: DecodingSection
    sentences: int
    seconds: float | None
    scores: list[Score]
    copy: Copy
    by_length: list[LengthBin]
    by_value: Mapping[str, list[ValueBin]]
    against: str | None
    comparisons: list[Comparison]

    def as_json(self) -> dict[str, Any]:
        found = {_NAMES.get(name, name): value for name, value in asdict(self).items()}
        return {**found, "decoding": self.decoding.model_dump()}

    def tables(self) -> Iterator[Table]:
        decoding = self.decoding
        title = f"{self.run}, {self.split}: {self.sentences:,} sentences, checkpoint {self.checkpoint}, "
        title += f"beam {decoding.beam}, alpha {decoding.alpha}"
        title += f", {decoding.precision}" if decoding.precision else ""
        copied = [f"{self.copy}"] if self.copy.one_language else []
        found = [(score.name, f"{score.value:.2f}") for score in self.scores]
        yield Table(title, ["metric", "score"], found, below=[*copied, *_signatures(self.scores)])
        parts: dict[tuple[str, str], Sequence[LengthBin | ValueBin]] = {("source length", "words"): self.by_length}
        parts |= {(name, name): bins for name, bins in self.by_value.items()}
        for (title, first), bins in parts.items():
            rows = [(one.name, one.sentences, f"{one.bleu:.2f}") for one in bins if one.bleu is not None]
            yield Table(f"BLEU by {title}", [first, "sentences", "BLEU"], rows)
        if self.against:
            cells = []
            for one in self.comparisons:
                both = (one.baseline, one.baseline_interval), (one.system, one.system_interval)
                scores = [within(value, max(value - half, 0.0), value + half) for value, half in both]
                cells.append([one.name, *scores, signed(one.difference), p_words(one.p_value)])
            columns = ["metric", "baseline", "this run", "difference", "p"]
            title = f"paired bootstrap against {self.against} (95 % interval); {ONE_SEED}"
            yield Table(title, columns, cells, below=_signatures(self.comparisons))


def _signatures(figures: Sequence[Score] | Sequence[Comparison]) -> list[str]:
    """Return a line for each signature: they are too long to stand in a table, and are copied whole."""
    return [f"{one.name}: {one.signature}" for one in figures]


def evaluate(asked: Asked) -> Evaluation:
    """Score a run's translations of a split and write the scores into the run."""
    run, split, against = asked.run, asked.split, asked.against
    text, chosen, compared = _read(asked)
    references, *others = text.references
    if against is not None and not text.origin and read_text(against, split, "target") != references:
        raise RunError(f"{against.folder} has other {split} references than {run.folder}; their scores do not compare")
    if looks_tokenised(references):
        note(f"the {text.name} references are tokenised text: the scores do not compare with those of raw text")
    check_tokenizer(compared["tokenize"])
    how: dict[str, Any] = {**compared, "others": others}
    answered = _decode(run, text, asked.checkpoint, chosen, asked.device)
    hypotheses, setting = answered.lines, _scoring(answered.setting, text, compared)
    for remark in remarks(text.source, hypotheses, equal=0.5):
        warn(f"{run.name}, {setting.weights.name}: {remark}")
    evaluation = Evaluation(
        run=run.name,
        split=text.name,
        checkpoint=setting.weights.name,
        decoding=chosen,
        sentences=len(references),
        seconds=answered.seconds,
        scores=all_scores(hypotheses, references, **how),
        copy=copy_baseline(text.source, references, **how),
        by_length=bleu_by_length(text.source, hypotheses, references, **how),
        by_value={name: bleu_by_value(each, hypotheses, references, **how) for name, each in text.extras.items()},
        against=None,
        comparisons=[],
    )
    scores = {score.name: score.value for score in evaluation.scores}
    write_result(run, setting, evaluation.as_json(), scores, answers=answered.path)
    if against is None:
        return evaluation
    if isinstance(against, Export):
        chosen = decoding_of_export(chosen)
    baseline = _decode(against, text, asked.checkpoint, chosen, asked.device, system=run)
    comparisons = paired_bootstrap(baseline.lines, hypotheses, references, **how)
    evaluation = replace(evaluation, against=against.name, comparisons=comparisons)
    beside = setting.beside(against.name, baseline.setting.weights)
    write_result(run, beside, evaluation.as_json(), scores, answers=answered.path, against=against.name)
    return evaluation


def setting_of(asked: Asked) -> Setting:
    """Return what decides the result of :func:`evaluate`, which is asked the same. Raises RunError."""
    text, decoding, compared = _read(asked)
    return _scoring(_search_setting(asked.run, text, asked.checkpoint, decoding), text, compared)


def _read(asked: Asked) -> tuple[Text, DecodingSection, dict[str, Any]]:
    """Return the text, the search, and how translations are compared: as asked, or as is usual for the run's text."""
    run, given = asked.run, dict(asked.options)
    lowercase, tokenize = given.pop("lowercase", None), given.pop("tokenize", None)
    text = own_text(run, given.pop("source", None), given.pop("reference", None))
    if text and asked.split != "test":
        raise UserError(f"--split {asked.split} is for the run's own text, --source for other text: give one of them")
    text, recipe = text or Text.of_split(run, asked.split), run.recipe_of(TranslationRecipe)
    if lowercase is None:
        lowercase = load_tokenizers(run).target.lowercase
    tokenize = tokenize or recipe.training.bleu_tokenizer or usual_tokenizer(run.data().get("target_language"))
    return text, change_decoding(recipe.decoding, **given), {"lowercase": lowercase, "tokenize": tokenize}


def _scoring(setting: Setting, text: Text, compared: Mapping[str, Any]) -> Setting:
    """Return what decides scores: what decides the translations, and how they are compared with which references."""
    named = {name: value for name, value in compared.items() if (name, value) != ("tokenize", USUAL)}
    return replace(setting, values={**setting.values, **text.origin, **named})


@dataclass(frozen=True)
class _Answered:
    """Translations: where they are kept, what decides them, themselves, and the seconds that the search took."""

    path: Path
    setting: Setting
    lines: list[str]
    seconds: float | None


def _decode(
    run: Run, text: Text, checkpoint: str, decoding: DecodingSection, device: str, *, system: Run | None = None
) -> _Answered:
    """Return a run's translations: those that it keeps, or new ones, a baseline's kept with the `system` beside it.

    Kept ones are as good where the weights that made them are damaged by now, but nobody could make them again: a
    warning says so.
    """
    from phmctl.decoding.translator import load_translator

    lines = text.source if text.origin else read_text(run, text.name, "source")

    def find_or_make(name: str) -> _Answered:
        setting = _search_setting(run, text, name, decoding)
        paths = [setting.path(run, "hyp")]
        if system is not None:
            paths.append(system.results_folder / f"against.{run.name.replace('/', '-')}.{paths[0].name}")
        for path in paths:
            kept = _kept(path, setting, lines)
            if kept is not None:
                try:
                    run.verify_weights(name)
                except RunError as error:
                    warn(f"the translations kept in {path} are scored, but their checkpoint cannot be loaded: {error}")
                return _Answered(path, setting, *kept)
        translator, began = load_translator(run, name, device, decoding, cleaned=True), time.perf_counter()
        made = _translate(run, translator, lines)
        seconds = round(time.perf_counter() - began, 3)
        content = "".join(f"{line}\n" for line in made)
        write_atomic(paths[-1], content)
        write_json(paths[-1].with_suffix(_ORIGIN), {**_origin(setting, lines, content), "seconds": seconds})
        return _Answered(paths[-1], setting, made, seconds)

    return run.use(checkpoint, find_or_make)


def _translate(run: Run, translator: "Translator", lines: Sequence[str]) -> list[str]:
    with progress(f"decoding {len(lines):,} lines with {run.name}", len(lines)) as advance:
        return [best.text for best, *_ in translator.translate(lines, advance=advance)]


def _search_setting(run: Run, text: Text, checkpoint: str, decoding: DecodingSection) -> Setting:
    """Return what determines translations: weights, search and the source text."""
    search = decoding.model_dump(exclude=keys_changing(decoding, NOTHING), exclude_none=True)
    own = {key: text.origin[key] for key in ("source_sha256",) if key in text.origin}
    label = ".".join(filter(None, [f"beam-{decoding.beam}.alpha-{decoding.alpha:g}", decoding.precision]))
    return Setting(text.name, run.weights(checkpoint), {"decoding": search, **own}, label)


def _origin(setting: Setting, lines: Sequence[str], hypotheses: str) -> dict[str, Any]:
    return {
        "checkpoint": setting.weights.name,
        "checkpoint_sha256": setting.weights.sha256,
        "source_sha256": sha256_text(f"{line}\n" for line in lines),
        **setting.values,
        "hypotheses_sha256": sha256_text([hypotheses]),
    }


def _kept(path: Path, setting: Setting, lines: Sequence[str]) -> tuple[list[str], float | None] | None:
    """Return the translations in `path` and what they took, if they are whole and were made so from these lines."""
    try:
        recorded = json.loads(path.with_suffix(_ORIGIN).read_text(encoding="utf-8"))
        content = path.read_bytes().decode("utf-8")
        seconds = recorded.pop("seconds", None)
    except (OSError, ValueError, AttributeError):
        return None
    return (content.split("\n")[:-1], seconds) if recorded == _origin(setting, lines, content) else None
