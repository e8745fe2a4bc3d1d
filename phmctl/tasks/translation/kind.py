"""The task ``translation``: corpora of sentence pairs, Transformers, beam search and BLEU."""

from __future__ import annotations  # torch is imported by the methods that need it

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.decoding.loading import load_translator
from phmctl.decoding.translator import Translator
from phmctl.errors import DataError, UserError
from phmctl.languages import is_code
from phmctl.metrics.text import USUAL, ScoreOptions
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import ParallelSection, TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.copies import read_text
from phmctl.runs.results import Result
from phmctl.tasks.answers import Answers, Metric, TextComparer
from phmctl.tasks.base import Task
from phmctl.tasks.text import TABLE_OPTIONS, TEXT_OPTIONS, OwnFiles, TextKind, row_format
from phmctl.tasks.translation.evaluation import Evaluation, TranslationScoreRequest, TranslatorRequest, evaluate
from phmctl.tasks.translation.text import note_unknown_languages, text_of

if TYPE_CHECKING:
    import torch
    from torch import nn

_TABLE_COLUMNS = {"columns", "header", "quoting", "extra"}  # options that describe a table of both sides


class TranslationKind(TextKind[TranslationRecipe]):
    """Translation and style transfer."""

    recipe, section = TranslationRecipe, ParallelSection
    commands = (*TextKind.commands, "bench decode")
    load_request, score_request = TranslatorRequest, TranslationScoreRequest
    sides, size_note = ("source", "target"), "{:,} source and {:,} target token types"
    prepare_options = (*TEXT_OPTIONS, "joint", "direction", "copies", *TABLE_OPTIONS, "columns", "languages")
    file_options = "--train FILE [FILE] --valid FILE [FILE]"
    corpus_options = ("train", "valid", "test")
    metrics = (Metric("BLEU", tested=True), Metric("chrF2", tested=True), Metric("TER", higher=False))
    comparer = TextComparer()

    def own_files(self, files: Mapping[str, Any], options: Mapping[str, Any]) -> OwnFiles:
        languages = None
        if "languages" in options:
            languages = _pair("languages", options["languages"])
            if not all(map(is_code, languages)):
                raise DataError(f"--languages {options['languages']}: expected two codes, SOURCE,TARGET, as de,en")
            note_unknown_languages(*languages)
        columns = _pair("columns", options.get("columns", "0,1"))
        is_table = not _TABLE_COLUMNS.isdisjoint(options)
        table_format = row_format("--columns", columns, None, options) if is_table else None
        return OwnFiles(files, table_format, languages, columns_given="columns" in options)

    def open(self, recipe: TranslationRecipe, data: Path) -> Task:
        from phmctl.tasks.translation.task import TranslationTask

        return TranslationTask.open(recipe, data)

    def build(
        self, settings: TransformerSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> nn.Module:
        from phmctl.assembly import build_transformer

        return build_transformer(settings, sizes["source"], sizes["target"], device)

    def load(self, request: TranslatorRequest) -> Translator:
        settings = request.decoding(request.run)
        if request.n_best is not None and request.n_best > settings.beam:
            raise UserError(f"--n-best {request.n_best} needs a beam at least as large; add --beam {request.n_best}")
        return load_translator(
            request.run,
            request.checkpoint,
            request.device,
            settings,
            cleaned=request.cleaned,
            threads=request.threads,
            n_best=request.n_best,
            strict=request.strict,
        )

    def split_lines(self, run: Run, split: str) -> list[str]:
        return read_text(run, split, "source")

    def evaluate(self, request: TranslationScoreRequest) -> Evaluation:
        return evaluate(request)

    def answers(self, run: Run, result: Result) -> Answers | None:
        if result.answers is None or "source_sha256" in result.settings:  # the text of files is not in the run
            return None
        translations = result.answers.read_text(encoding="utf-8").split("\n")[:-1]
        text = text_of(run, result.split)
        options: ScoreOptions = {
            "lowercase": bool(result.settings["lowercase"]),
            "tokenize": str(result.settings.get("tokenize", USUAL)),
        }
        return Answers(text.source, text.references[0], translations, text.extras, options)

    def tables(self, settings: TransformerSection, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"source_embedding": sizes["source"], "target_embedding": sizes["target"], "generator": sizes["target"]}

    def notes(self, settings: TransformerSection, sizes: Mapping[str, int]) -> Iterator[str]:
        users = ["target"]
        if settings.share_embeddings:
            users.insert(0, "source")
        if settings.generator == "tied":
            users.append("generator")
        if len(users) > 1:
            yield f"one table serves {', '.join(users[:-1])} and {users[-1]}"


def _pair(option: str, value: str) -> tuple[str, str]:
    names = [name.strip() for name in value.split(",")]
    if len(names) != 2 or "" in names:
        raise DataError(f"--{option} {value}: expected two names, SOURCE,TARGET")
    return names[0], names[1]
