"""Translation, as the commands know it: preparing pairs, what answers, and its scores against raw references.

Into a run's ``results/`` go, for a split, a checkpoint and the search, the translations (``.hyp``, one a line), what
they were made from (``.decoding.json``: they are made anew when any of it differs), and the scores (``.json``); with a
baseline another file, which has the comparison. A baseline's folder is only read: translations that it does not have by
the same settings lie with the system's results, as ``against.<baseline>.….hyp``.
"""

from __future__ import annotations  # what a method works with is imported in it: decoding with an export wants no torch

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import Table, note, progress, warn
from phmctl.data.card import RowFormat
from phmctl.data.clean import clean_line
from phmctl.data.copies import ADVICE, load_cleaning, load_tokenizers, read_text, refuse_damaged_copy
from phmctl.data.readers import guess_format, read_sentences
from phmctl.decoding.loading import load_translator
from phmctl.decoding.search import change_decoding
from phmctl.decoding.translator import Translator
from phmctl.errors import DataError, RunError, UserError
from phmctl.exports import Export, decoding_of_export
from phmctl.files import read_json_object, sha256_text, write_atomic, write_json
from phmctl.metrics import text as scoring
from phmctl.metrics.classification import part_name, parts
from phmctl.metrics.text import remarks
from phmctl.recipe.models import NOTHING, TransformerSection, keys_changing
from phmctl.recipe.schema import DecodingSection, ParallelSection, TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.results import Result, ScoringKey, write_result
from phmctl.tasks.answers import ONE_SEED, Answers, Metric, TextComparer, p_words, within
from phmctl.tasks.base import USUAL_COMMANDS, Asked
from phmctl.tasks.own import TABLES, TAKEN, TextKind, rows_of

if TYPE_CHECKING:
    import torch
    from torch import nn

    from phmctl.metrics.significance import Difference

EXTRAS = ".extras"  # of a split in a run: whole numbers of its sentences by name, JSON
_ORIGIN = ".decoding.json"
_SEARCH = ("beam", "alpha", "batch_tokens", "precision")
_COLUMNS = ("columns", "header", "quoting", "extra")  # how a table with both sides in it is read
CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")  # of a language: de, pt-br, zh-Hant


class TranslationKind(TextKind[TranslationRecipe]):
    """Sequence to sequence: beam search, BLEU, two vocabularies."""

    recipe, section, task = TranslationRecipe, ParallelSection, "phmctl.tasks.translation.task:TranslationTask"
    sides, found = ("source", "target"), "{:,} source and {:,} target token types"
    takes = (*TAKEN, "joint", "direction", "copies", *TABLES, "columns", "languages")
    way = "--train FILE [FILE] --valid FILE [FILE]"
    commands = (*USUAL_COMMANDS, "bench decode")
    corpus_options = ("train", "valid", "test")
    eval_options = (*_SEARCH, "lowercase", "tokenize", "source", "reference")
    decode_options = (*_SEARCH, "n_best", "strict")
    metrics = (Metric("BLEU", tested=True), Metric("chrF2", tested=True), Metric("TER", higher=False))
    comparer = TextComparer()

    def own_files(
        self, files: Mapping[str, Any], options: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], RowFormat | None, dict[str, Any]]:
        how: dict[str, Any] = {"columns_given": "columns" in options}
        if codes := options.get("languages"):
            how["languages"] = _pair("languages", codes)
            if not all(map(CODE.fullmatch, how["languages"])):
                raise DataError(f"--languages {codes}: expected two codes, SOURCE,TARGET, as de,en")
        columns = _pair("columns", options.get("columns", "0,1"))
        return files, rows_of("--columns", columns, None, options) if {*_COLUMNS} & {*options} else None, how

    def evaluate(self, asked: Asked) -> Evaluation:
        """Score a run's translations of a split and write the scores into the run."""
        run, split, against = asked.run, asked.split, asked.against
        text, decoding, compared = _read(asked)
        references, *others = text.references
        if against is not None and not text.origin and read_text(against, split, "target") != references:
            raise RunError(
                f"{against.folder} has other {split} references than {run.folder}; their scores do not compare"
            )
        if scoring.looks_tokenised(references):
            note(f"the {text.name} references are tokenised text: the scores do not compare with those of raw text")
        scoring.check_tokenizer(compared["tokenize"])
        how: scoring.ScoreOptions = {**compared, "others": others}
        made, hypotheses, seconds = _answered(run, text, asked, decoding)
        for remark in remarks(text.source, hypotheses, equal=0.5):
            warn(f"{run.name}, {made.weights.name}: {remark}")
        evaluation = Evaluation(
            run.name,
            text.name,
            made.weights.name,
            decoding,
            sentences=len(references),
            decoding_seconds=seconds,
            scores=scoring.all_scores(hypotheses, references, **how),
            copy=scoring.copy_baseline(text.source, references, **how),
            bleu_by_source_length=scoring.bleu_by(scoring.length_parts(text.source), hypotheses, references, **how),
            bleu_by_extra={
                name: scoring.bleu_by(parts(each), hypotheses, references, **how) for name, each in text.extras.items()
            },
        )
        named = {name: value for name, value in compared.items() if (name, value) != ("tokenize", scoring.USUAL)}
        setting = replace(made, settings={**made.settings, **text.origin, **named})
        kept = made.path(run, "hyp")
        write_result(run, setting, evaluation.as_json(), kept)
        if against is None:
            return evaluation
        same = decoding_of_export(decoding) if isinstance(against, Export) else decoding
        rival, theirs, _ = _answered(against, text, asked, same)
        tests = scoring.paired_bootstrap(theirs, hypotheses, references, **how)
        evaluation = replace(evaluation, against=against.name, paired_bootstrap=tests)
        write_result(run, setting.against(against.name, rival.weights), evaluation.as_json(), kept)
        return evaluation

    def build(
        self, settings: TransformerSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> nn.Module:
        from phmctl.assembly import build_transformer

        return build_transformer(settings, sizes["source"], sizes["target"], device)

    def load(self, asked: Asked) -> Translator:
        given = dict(asked.options)
        how: dict[str, Any] = {name: given.pop(name) for name in ("n_best", "strict") if name in given}
        settings = change_decoding(asked.run.recipe_of(TranslationRecipe).decoding, **given)
        if (wanted := how.get("n_best", 1)) > settings.beam:
            raise UserError(f"--n-best {wanted} needs a beam at least as large; add --beam {wanted}")
        how |= {"cleaned": asked.own_text, "threads": asked.threads}
        return load_translator(asked.run, asked.checkpoint, asked.device, settings, **how)

    def split_lines(self, run: Run, split: str) -> list[str]:
        return read_text(run, split, "source")

    def answers(self, run: Run, result: Result) -> Answers | None:
        if result.answers is None or "source_sha256" in result.settings:  # of text that is not the run's
            return None
        given = result.answers.read_text(encoding="utf-8").split("\n")[:-1]
        text = text_of(run, result.split)
        lowercase = bool(result.settings["lowercase"])
        how: scoring.ScoreOptions = {
            "lowercase": lowercase,
            "tokenize": str(result.settings.get("tokenize", scoring.USUAL)),
        }
        return Answers(text.source, text.references[0], given, text.extras, how)

    def tables(self, settings: TransformerSection, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"source_embedding": sizes["source"], "target_embedding": sizes["target"], "generator": sizes["target"]}

    def notes(self, settings: TransformerSection, sizes: Mapping[str, int]) -> Iterator[str]:
        served = ["source"] * settings.share_embeddings + ["target"] + ["generator"] * (settings.generator == "tied")
        if len(served) > 1:
            yield f"one table serves {', '.join(served[:-1])} and {served[-1]}"


KIND = TranslationKind()


def _pair(option: str, text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(","))
    if len(found) != 2 or "" in found:
        raise DataError(f"--{option} {text}: wants two, SOURCE,TARGET")
    return found


@dataclass(frozen=True)
class Text:
    """What is translated and scored: a split of the run's own text, or files that it has never seen."""

    name: str  # the split's, or the file's
    source: Sequence[str]  # its sentences
    references: Sequence[Sequence[str]]  # the right translations, a list of lines for each set of references
    # whole numbers of each sentence by which scores are broken down, by name; -1 is not known
    extras: Mapping[str, Sequence[int]] = field(default_factory=dict)
    # what tells files from others of the same name, for the results' settings: their SHA-256
    origin: Mapping[str, Any] = field(default_factory=dict)


def text_of(run: Run, split: str) -> Text:
    """Return a split that the run keeps. Raises RunError."""
    source, target = (read_text(run, split, side) for side in ("source", "target"))
    if len(source) != len(target):
        raise RunError(f"{run.folder}: {split} has {len(source):,} sources and {len(target):,} targets; {ADVICE}")
    path, extras = run.text_folder / f"{split}{EXTRAS}", dict[str, list[int]]()
    if path.is_file():
        refuse_damaged_copy(run, path)
        extras = read_json_object(path, RunError, ADVICE)
    return Text(split, source, [target], extras)


def text_of_files(run: Run, source: Path | str | None, references: Sequence[Path | str] | None) -> Text:
    """Return files as the run's own text is: cleaned as it was. Raises DataError."""
    if source is None or not references:
        raise DataError("your own text needs both --source FILE and --reference FILE (repeatable)")
    cleaning = load_cleaning(run)
    paths = [Path(source), *map(Path, references)]
    texts = [[clean_line(line, cleaning) for line in read_sentences(path, guess_format(path))] for path in paths]
    for path, lines in zip(paths[1:], texts[1:], strict=True):
        if len(lines) != len(texts[0]) or not lines:
            raise DataError(f"{source} has {len(texts[0]):,} lines, and {path} has {len(lines):,}")
    source_sha256, *others = (sha256_text(f"{line}\n" for line in lines) for lines in texts)
    name = paths[0].name
    name = f"file-{name}" if name in ("test", "valid", *run.splits()) else name  # it is not that split
    return Text(name, texts[0], texts[1:], origin={"source_sha256": source_sha256, "references_sha256": others})


@dataclass(frozen=True)
class Evaluation:
    """The scores of a run on a split."""

    run: str  # its name
    split: str  # a split, or the name of a file; ``file-test`` of one called so
    checkpoint: str  # the name of the checkpoint's folder
    decoding: DecodingSection  # the settings of the search
    sentences: int  # how many were scored
    decoding_seconds: float  # that the search took when the translations were made
    scores: list[scoring.Score]  # BLEU, chrF and TER
    copy: scoring.Copy  # what copying the source scores
    bleu_by_source_length: list[scoring.Bin]  # BLEU by source length
    bleu_by_extra: Mapping[str, list[scoring.Bin]]  # BLEU by the values of each extra that the corpus has
    against: str | None = None  # the baseline's name
    paired_bootstrap: Mapping[str, Difference] = field(default_factory=dict)  # from the baseline, by metric

    def as_json(self) -> dict[str, Any]:
        return {**asdict(self), "decoding": self.decoding.model_dump()}

    def tables(self) -> Iterator[Table]:
        decoding = self.decoding
        title = f"{self.run}, {self.split}: {self.sentences:,} sentences, checkpoint {self.checkpoint}, "
        title += f"beam {decoding.beam}, alpha {decoding.alpha}"
        title += f", {decoding.precision}" if decoding.precision else ""
        below = [f"{self.copy}"] if self.copy.one_language else []
        below += [f"{score.name}: {score.signature}" for score in self.scores]  # too long for a table, and copied whole
        found = [(score.name, f"{score.value:.2f}") for score in self.scores]
        yield Table(title, ["metric", "score"], found, below=below)
        for name, bins in {"words of the source": self.bleu_by_source_length, **self.bleu_by_extra}.items():
            rows = [(part_name(one.value), one.sentences, f"{one.bleu:.2f}") for one in bins]
            yield Table(f"BLEU by {name}", [name, "sentences", "BLEU"], rows)
        if self.against:
            cells = []
            for name, test in self.paired_bootstrap.items():
                scores = [within(one.value, max(one.low, 0.0), one.high) for one in (test.baseline, test.system)]
                change = test.difference
                cells.append(
                    [name, *scores, within(change.value, change.low, change.high, "+.2f"), p_words(test.p_value)]
                )
            columns = ["metric", "baseline", "this run", "difference", "p"]
            yield Table(f"paired bootstrap against {self.against} (95 % interval); {ONE_SEED}", columns, cells)


def _read(asked: Asked) -> tuple[Text, DecodingSection, scoring.ScoreOptions]:
    """Return the text, the search, and how translations are compared: as asked, or as is usual for the run's text."""
    run, given = asked.run, dict(asked.options)
    lowercase, tokenize = given.pop("lowercase", None), given.pop("tokenize", None)
    source, references = given.pop("source", None), given.pop("reference", None)
    own = source is not None or bool(references)
    text = text_of_files(run, source, references) if own else text_of(run, asked.split)
    recipe = run.recipe_of(TranslationRecipe)
    if lowercase is None:
        lowercase = load_tokenizers(run).target.lowercase
    tokenize = tokenize or recipe.training.bleu_tokenizer or scoring.usual_tokenizer(run.data().get("target_language"))
    return text, change_decoding(recipe.decoding, **given), {"lowercase": lowercase, "tokenize": tokenize}


def _answered(run: Run, text: Text, asked: Asked, decoding: DecodingSection) -> tuple[ScoringKey, list[str], float]:
    """Return what decides a run's translations, themselves, and the seconds that the search took.

    They are those that it keeps, or new ones; a baseline's are kept with the system beside it.
    """
    if run is not asked.run:  # the baseline reads text that is cleaned as its own data was
        if not text.origin:
            text = text_of(run, asked.split)
        elif load_cleaning(run) != load_cleaning(asked.run):
            text = text_of_files(run, asked.options["source"], asked.options["reference"])
    lines = text.source

    def find_or_make(name: str) -> tuple[ScoringKey, list[str], float]:
        search = decoding.model_dump(exclude=keys_changing(decoding, NOTHING), exclude_none=True)
        own = {key: text.origin[key] for key in ("source_sha256",) if key in text.origin}
        label = ".".join(filter(None, [f"beam-{decoding.beam}.alpha-{decoding.alpha:g}", decoding.precision]))
        setting = ScoringKey(text.name, run.weights(name), {"decoding": search, **own}, label)
        paths = [setting.path(run, "hyp")]
        if run is not asked.run:
            paths.append(asked.run.results_folder / f"against.{run.name.replace('/', '-')}.{paths[0].name}")
        source_sha256 = sha256_text(f"{line}\n" for line in lines)
        for path in paths:
            with suppress(OSError, ValueError, LookupError, TypeError):  # not there, torn, or made from other text
                made_of = json.loads(path.with_suffix(_ORIGIN).read_text(encoding="utf-8"))
                content = path.read_bytes().decode("utf-8")
                if (made_of["source_sha256"], made_of["hypotheses_sha256"]) == (source_sha256, sha256_text([content])):
                    return setting, content.split("\n")[:-1], made_of["seconds"]
        translator, began = load_translator(run, name, asked.device, decoding, cleaned=True), time.perf_counter()
        with progress(f"decoding {len(lines):,} lines with {run.name}", len(lines)) as advance:
            made = [line for line, _ in translator.answer(lines, advance=advance)]
        seconds = round(time.perf_counter() - began, 3)
        content = "".join(f"{line}\n" for line in made)
        write_atomic(paths[-1], content)
        about = {"checkpoint": setting.weights.name, "checkpoint_sha256": setting.weights.sha256, **setting.settings}
        about |= {"source_sha256": source_sha256, "hypotheses_sha256": sha256_text([content]), "seconds": seconds}
        write_json(paths[-1].with_suffix(_ORIGIN), about)
        return setting, made, seconds

    return run.use(asked.checkpoint, find_or_make)
