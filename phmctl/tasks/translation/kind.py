"""Translation, as the commands know it: preparing pairs, the translator that answers, by any engine."""

from __future__ import annotations  # what a method works with is imported in it: decoding with an export wants no torch

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from phmctl.console import silence
from phmctl.data.copies import read_text
from phmctl.decoding.translator import TORCH, Translation, Translator, change_decoding, plan
from phmctl.errors import DataError, RunError, UserError
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import ParallelSection, TranslationRecipe
from phmctl.runs import Run
from phmctl.runs.results import Result, Setting
from phmctl.tasks.answers import Answers, Metric, TextComparer
from phmctl.tasks.base import USUAL_COMMANDS, Asked, Candidate, Preparation, Report, Sizes, TaskKind, option_name
from phmctl.tasks.model import Model, Texts, check_texts

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from phmctl.data.batches import Batch
    from phmctl.data.card import Rows
    from phmctl.data.prepared.folder import PreparedData
    from phmctl.tasks.translation.task import TranslationTask

_SEARCH = ("beam", "alpha", "batch_tokens", "execution", "precision")
_IRRELEVANT = {"batch_tokens", "execution"}  # settings of the search that change its speed only
_TABLES = ("columns", "header", "quoting", "extra", "skip_bad_lines")  # how a table with both sides in it is read
_CODE = re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*")  # of a language: de, pt-br, zh-Hant
_VECTORS = "the mean of the encoder's states over all positions"


class TranslationModel(Model):
    """Translations of texts and lines: the best of each, or several with their scores."""

    verb = "translating"

    def __init__(
        self, translator: Translator, run: Run, checkpoint: str, n_best: int | None = None, *, strict: bool = False
    ) -> None:
        engine: Any = translator.engine  # torch's has a model and a device
        self.translator, self.n_best, self.strict, self.engine = translator, n_best, strict, engine
        about = {"engine": engine.name, "decoding": translator.settings.model_dump(), "device": "cpu"}
        self.answers = ("translate",)
        if engine.name == TORCH:
            self.answers = ("translate", "score", "encode")
            about |= {"device": str(engine.device), "vectors": _VECTORS}
        super().__init__(run, checkpoint, **about)

    @silence()
    def translate(
        self,
        texts: Sequence[str],
        *,
        beam: int | None = None,
        alpha: float | None = None,
        n_best: int = 1,
        strict: bool = False,
    ) -> list[list[Translation]]:
        settings = change_decoding(self.translator.settings, beam=beam, alpha=alpha)
        if not 1 <= n_best <= settings.beam:
            raise UserError(f"n_best = {n_best} must be between 1 and beam = {settings.beam}")
        return self.translator.with_settings(settings).translate(check_texts(texts), n_best=n_best, strict=strict)

    @property
    def max_tokens(self) -> int | None:
        return self.translator.max_source_tokens

    @silence()
    def lengths(self, texts: Texts) -> list[int]:
        translator = self.translator
        if not texts or isinstance(texts, str) or not all(isinstance(text, tuple) for text in texts):
            return translator.lengths(check_texts(texts))
        sources, targets = (check_texts(side) for side in zip(*texts, strict=True))
        return [*map(max, translator.lengths(sources), map(len, translator.encode_targets(targets)))]

    @silence()
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        if "score" not in self.answers:
            raise self._lacks("score")
        from phmctl.decoding.beam import forced_scores, pad

        checked, outputs = check_texts(sources, "sources"), check_texts(targets, "targets")
        if len(checked) != len(outputs):
            raise UserError(f"{len(checked)} sources and {len(outputs)} targets: give one target for each source")
        rows, _ = self.translator.encode(checked, strict=True)
        wanted = self.translator.encode_targets(outputs)
        scores = [-float("inf") if ids else 0.0 for ids in wanted]  # of sources without a token
        lengths = [max(len(row), len(ids) + 1) if row else 0 for row, ids in zip(rows, wanted, strict=True)]
        for places in plan(lengths, self.translator.settings.batch_tokens):
            source = pad([rows[place] for place in places]).to(self.engine.device)  # (B, S)
            found = forced_scores(self.engine.model, source, [wanted[place] for place in places], alpha=0.0)
            for place, hypothesis in zip(places, found, strict=True):
                scores[place] = hypothesis.log_prob
        return scores

    @silence()
    def encode(self, texts: Sequence[str]) -> Tensor:
        if "encode" not in self.answers:
            raise self._lacks("encode")
        import torch

        from phmctl.decoding.beam import pad
        from phmctl.nn.layers import mean_pool

        model = self.engine.model
        rows, _ = self.translator.encode(check_texts(texts), strict=False)
        vectors = torch.zeros(len(rows), model.target_embedding.embedding_dim)  # (N, d)
        with torch.no_grad():
            for places in plan([len(row) for row in rows], self.translator.settings.batch_tokens):
                memory = model.encode(pad([rows[place] for place in places]).to(self.engine.device))
                vectors[places] = mean_pool(memory.states, memory.mask[:, 0, 0]).float().cpu()  # (B, d)
        return vectors

    # ------------------------------------------------------------------------------------------------- for decode

    def origin(self) -> dict[str, Any]:
        return {**self.translator.settings.model_dump(exclude=_IRRELEVANT), "n_best": self.n_best}

    def predict(
        self, lines: Sequence[str], *, numbers: Sequence[int] | None = None, advance: Callable[[int], None]
    ) -> list[list[Translation]]:
        wanted = self.n_best or 1
        return self.translator.translate(lines, n_best=wanted, strict=self.strict, numbers=numbers, advance=advance)

    def lines(self, found: Sequence[Sequence[Translation]], *, first_line: int = 1) -> Iterator[str]:
        """Yield the best translation of each line, or its n best with number, rank and score."""
        for number, candidates in enumerate(found, start=first_line):
            if self.n_best is None:
                yield candidates[0].text
                continue
            for rank, each in enumerate(candidates, start=1):
                yield f"{number}\t{rank}\t{each.score:.6f}\t{each.text}"

    def as_json(self, found: Sequence[Sequence[Translation]]) -> Iterator[dict[str, Any]]:
        for candidates in found:
            texts = [{"text": each.text, "score": each.score, "log_prob": each.log_prob} for each in candidates]
            yield {"translations": texts}


def _rows(options: Mapping[str, Any]) -> Rows | None:
    """Return how tables are read; None where no option says. Raises DataError."""
    from phmctl.data.card import RESERVED, Rows

    if not options:
        return None
    names = [name.strip() for name in options.get("columns", "0,1").split(",")]
    if len(names) != 2 or not all(names) or names[0] == names[1]:
        raise DataError(f"--columns {options['columns']}: wants two, SOURCE,TARGET: names, or numbers counted from 0")
    extras = options.get("extra", ())
    taken = next((name for name in extras if name in (*names, *RESERVED)), None)
    if taken is not None:
        raise DataError(f"--extra {taken}: a column of whole numbers beside the texts, which is not called so")
    numbers = all(name.isdecimal() for name in (*names, *extras))
    header = options.get("header", not numbers)
    if not header and not numbers:
        raise DataError("with --no-header, --columns are numbers, counted from 0; so is --extra")
    source, target, *others = (int(name) if numbers else name for name in (*names, *extras))
    return Rows(texts=(source, target), header=header, extras=dict(zip(extras, others, strict=True)))


class TranslationKind(TaskKind[TranslationRecipe]):
    """Sequence to sequence: beam search, BLEU, two vocabularies."""

    recipe = TranslationRecipe
    commands = (*USUAL_COMMANDS, "bench decode")
    corpus_options = ("train", "valid", "test")
    eval_options = (*_SEARCH, "lowercase", "tokenize", "source", "reference")
    decode_options = (*_SEARCH, "n_best", "strict")
    metrics = (Metric("BLEU", tested=True), Metric("chrF2", tested=True), Metric("TER", higher=False))
    comparer = TextComparer()

    def prepare(self, asked: Preparation) -> PreparedData:
        from phmctl.data.corpus import own_corpus
        from phmctl.data.prepared.prepare import choose_section, prepare_named
        from phmctl.data.prepared.provenance import Vocabulary

        given = dict(asked.options)
        if wrong := [option_name(name) for name in given if name not in (*_TABLES, "languages")]:
            raise DataError(
                f"{', '.join(wrong)} is for labelled text; {asked.name} is parallel text, to translate; "
                "labelled text comes with --table train=FILE --table valid=FILE"
            )
        if given and not asked.files:
            names = ", ".join(map(option_name, given))
            raise DataError(f"{names} is for your own files: give those with --train FILE --valid FILE")
        vocabulary = Vocabulary.of(asked.vocabulary_of) if asked.vocabulary_of else None
        section = choose_section(asked.name, asked.recipe, asked.settings, ParallelSection, vocabulary)
        skip, languages = bool(given.pop("skip_bad_lines", False)), dict[str, Any]()
        if codes := given.pop("languages", None):
            languages = {"languages": tuple(codes.split(","))}
            one, *other = languages["languages"]
            if len(other) != 1 or one == other[0] or not all(map(_CODE.fullmatch, (one, *other))):
                raise DataError(f"--languages {codes}: expected two codes, SOURCE,TARGET, as de,en")
        rows, quoting = _rows(given), given.get("quoting")
        how: dict[str, Any] = {
            "quoting": quoting,
            "skip": skip,
            "chosen": "columns" in given,
            "told": "header" in given,
            **languages,
        }
        own = own_corpus(section.card, asked.files, rows, **how) if asked.files else None
        settings = {"rows": rows.model_dump(mode="json"), "quoting": quoting} if rows else {}
        settings |= ({"skip_bad_lines": True} if skip else {}) | languages
        if rows and not rows.header and "header" not in given:
            settings["header"] = "by its words"
        return prepare_named(section, own=own, settings=settings, vocabulary=vocabulary, **asked.common)

    def open(self, recipe: TranslationRecipe, data: Path) -> TranslationTask:
        from phmctl.data.prepared.folder import PreparedData
        from phmctl.tasks.translation.task import TranslationTask

        return TranslationTask(recipe, PreparedData.find(recipe.data, data))

    def sizes(self, recipe: TranslationRecipe, data: Path | None = None) -> Sizes:
        from phmctl.data.prepared.folder import trained_sizes

        trained = None if data is None else trained_sizes(recipe.data, data)
        if trained is not None:
            note = "vocabulary: {:,} source and {:,} target token types, as in the prepared data".format(*trained)
            return Sizes({"source": trained[0], "target": trained[1]}, note, trained=True)
        asked = recipe.data.vocabulary
        note = f"vocabulary: {asked:,}, as the recipe asks; a trained tokenizer may be smaller"
        return Sizes({"source": asked, "target": asked}, note)

    def build(
        self, settings: TransformerSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> nn.Module:
        from phmctl.assembly import build_transformer

        return build_transformer(settings, sizes["source"], sizes["target"], device)

    def evaluate(self, asked: Asked) -> Report:
        from phmctl.tasks.translation.evaluation import evaluate

        return evaluate(asked)

    def setting(self, asked: Asked) -> Setting:
        from phmctl.tasks.translation.evaluation import setting_of

        return setting_of(asked)

    def answers(self, run: Run, result: Result) -> Answers | None:
        from phmctl.tasks.translation.evaluation import read_extras

        if result.answers is None or "source_sha256" in result.settings:  # of text that is not the run's
            return None
        try:
            given = result.answers.read_text(encoding="utf-8").split("\n")[:-1]
        except (OSError, ValueError) as error:
            raise RunError(f"{result.answers} cannot be read ({error}); remove it and score the run anew") from error
        asked, right = (read_text(run, result.split, side) for side in ("source", "target"))
        if len(given) != len(right):
            raise RunError(f"{result.answers} has {len(given):,} lines for {len(right):,} references; remove it")
        lowercase = bool(result.settings.get("lowercase", "case:lc" in str(result.report.get("scores"))))
        tokenize = str(result.settings.get("tokenize", "13a"))
        groups = read_extras(run, result.split)
        return Answers(asked, right, given, groups, lowercase=lowercase, tokenize=tokenize)

    def load(self, asked: Asked) -> TranslationModel:
        from phmctl.decoding.translator import load_translator

        run, given = asked.run, dict(asked.options)
        n_best, strict = given.pop("n_best", None), given.pop("strict", False)
        settings = change_decoding(run.recipe_of(TranslationRecipe).decoding, **given)
        if n_best is not None and n_best > settings.beam:
            raise UserError(f"--n-best {n_best} needs a beam at least as large; add --beam {n_best}")
        how: dict[str, Any] = {"cleaned": asked.own_text, "threads": asked.threads}
        translator = load_translator(run, asked.checkpoint, asked.device, settings, **how)
        return TranslationModel(translator, run, asked.checkpoint, n_best, strict=strict)

    def split_lines(self, run: Run, split: str) -> list[str]:
        return read_text(run, split, "source")

    def tables(self, settings: TransformerSection, sizes: Mapping[str, int]) -> dict[str, int]:
        return {"source_embedding": sizes["source"], "target_embedding": sizes["target"], "generator": sizes["target"]}

    def notes(self, settings: TransformerSection, sizes: Mapping[str, int]) -> Iterator[str]:
        served = ["source"] * settings.share_embeddings + ["target"] + ["generator"] * (settings.generator == "tied")
        if len(served) > 1:
            yield f"one table serves {', '.join(served[:-1])} and {served[-1]}"

    def candidates(self, task: TranslationTask, device: torch.device) -> dict[str, Candidate]:
        import torch

        from phmctl.assembly import bare_transformer
        from phmctl.models.transformer import bare_loss

        sizes = task.prepared.tokenizers
        model = bare_transformer(task.recipe.model, max(sizes.source.size, sizes.target.size)).to(device)
        smoothing = task.recipe.training.label_smoothing

        def loss(model: nn.Module, batch: Batch) -> Tensor:
            return bare_loss(model, batch.source, batch.target, smoothing)

        return {"nn.Transformer": Candidate(model, loss, torch.optim.Adam(model.parameters()))}


KIND = TranslationKind()
