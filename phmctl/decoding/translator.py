"""Raw text in, raw text out: tokenise, sort by length, batch by tokens, search, detokenise, restore the order.

What searches a batch of ids is an engine: torch's (:mod:`phmctl.decoding.beam`, which says what a beam and a score
are), or an export's. What an engine wants is imported with it: an export to CTranslate2 wants no torch.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from phmctl import exports
from phmctl.checkpoints import load_model
from phmctl.console import silence, warn
from phmctl.data.card import Cleaning
from phmctl.data.clean import clean_line
from phmctl.data.copies import load_cleaning, load_tokenizers
from phmctl.data.special import EOS
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.model import Advance, Line, Model, Texts, about_run, check_export, check_texts, ignore
from phmctl.devices import pick_device, takes_bfloat16
from phmctl.errors import DataError, RecipeError, UserError
from phmctl.exports import Export
from phmctl.recipe.documents import change
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import AUTO, Run

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class Hypothesis:
    tokens: list[int]  # the ids, without beginning and end of sentence
    score: float  # `log_prob` over the length penalty
    log_prob: float  # natural logarithm of the probability of `tokens` and the end of the sentence


def length_penalty(length: Any, alpha: float) -> Any:
    """Return ``((5 + length) / 6) ** alpha`` (Wu et al. 2016, eq. 14); `length`, a tensor or a number, counts EOS."""
    return ((5.0 + length) / 6.0) ** alpha


TORCH = "torch"
ENGINES = (TORCH, exports.CTRANSLATE2, exports.ONNX)


class Engine(Protocol):
    """Searches batches of source ids for the best outputs."""

    name: str  # one of :data:`ENGINES`

    def search(
        self, sources: Sequence[Sequence[int]], settings: DecodingSection, *, allowed: int, n_best: int
    ) -> list[list[Hypothesis]]:
        """Return the `n_best` best hypotheses of each source, best first; fewer where there are not so many outputs.

        `sources` are token ids, each closed by EOS; ids from `allowed` on, the target tokenizer's size, are never
        produced; `n_best` is at most the beam.
        """


def longest_outputs(sources: Sequence[Sequence[int]], settings: DecodingSection) -> list[int]:
    """Return the longest output of each source in tokens, EOS not counted: ``max_ratio · source + max_extra``."""
    return [int(settings.max_ratio * (len(source) - 1)) + settings.max_extra for source in sources]


def change_decoding(section: DecodingSection, **changes: float | str | None) -> DecodingSection:
    """Return the section with some keys changed; None leaves a key as it is. Raises RecipeError."""
    given = {key: value for key, value in changes.items() if value is not None}
    changed = change(section, given, RecipeError)
    # One setting has one name: what was computed in float32 is found again, whether it was asked for or not.
    return changed.model_copy(update={"precision": None}) if changed.precision == "float32" else changed


@dataclass(frozen=True, slots=True)
class Translation:
    """One translation of a line."""

    text: str  # what the line was translated to
    score: float  # `log_prob` over the length penalty of Wu et al. (2016), eq. 14; the beam is ranked by it
    log_prob: float  # natural logarithm of the probability that the model gives the text and its end
    cut: bool = False  # whether the line was longer than the model knows, so that only its beginning was translated


EMPTY = Translation("", 0.0, 0.0)


class Translator(Model):
    """Translations of texts and lines.

    `max_tokens` is of a source. `n_best` and `strict` are for :meth:`answer`; None is the best translation alone.
    """

    verb = "translating"

    def __init__(
        self,
        engine: Engine,
        tokenizers: TokenizerPair,
        settings: DecodingSection,
        *,
        max_tokens: int | None = None,
        cleaning: Cleaning | None = None,
        n_best: int | None = None,
        strict: bool = False,
        about: Mapping[str, Any] | None = None,
    ) -> None:
        self.engine: Any = engine  # torch's has a model and a device
        self.tokenizers, self.settings, self.max_tokens = tokenizers, settings, max_tokens
        self.cleaning, self.n_best, self.strict = cleaning or Cleaning(), n_best, strict
        device = str(getattr(engine, "device", "cpu"))
        own = {"engine": engine.name, "decoding": settings.model_dump(), "device": device}
        self.answers = ("translate",)
        if engine.name == TORCH:
            self.answers = ("translate", "score", "encode")
            own |= {"vectors": "the mean of the encoder's states over all positions"}
        super().__init__({**(about or {"name": "translator", "task": "translation"}), **own})

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
        settings = change_decoding(self.settings, beam=beam, alpha=alpha)
        if not 1 <= n_best <= settings.beam:
            raise UserError(f"n_best = {n_best} must be between 1 and beam = {settings.beam}")
        return self._translate(check_texts(texts), settings, n_best, strict)

    def answer(self, lines: Sequence[str], *, first: int = 1, advance: Advance = ignore) -> list[Line]:
        """Return the best translation of each line, or its n best with number, rank and score, a line each."""
        found = self._translate(lines, self.settings, self.n_best or 1, self.strict, first, advance)
        answers = []
        for number, best in enumerate(found, first):
            ranked = [f"{number}\t{rank}\t{each.score:.6f}\t{each.text}" for rank, each in enumerate(best, start=1)]
            text = best[0].text if self.n_best is None else "\n".join(ranked)
            answers.append((text, as_json(best)))
        return answers

    def _translate(
        self,
        lines: Sequence[str],
        settings: DecodingSection,
        n_best: int,
        strict: bool,
        first: int = 1,
        advance: Advance = ignore,
    ) -> list[list[Translation]]:
        sources, cut = self.token_ids(lines, strict=strict, first=first)
        results: list[list[Translation]] = [[EMPTY] for _ in lines]
        advance(sources.count([]))
        allowed = self.tokenizers.target.size
        for rows in plan([len(source) for source in sources], settings.batch_tokens):
            found = self.engine.search([sources[row] for row in rows], settings, allowed=allowed, n_best=n_best)
            for row, hypotheses in zip(rows, found, strict=True):
                results[row] = [self._detokenise(each, row in cut) for each in hypotheses]
            advance(len(rows))
        return results

    def token_ids(
        self, lines: Sequence[str], *, strict: bool = False, first: int = 1
    ) -> tuple[list[list[int]], set[int]]:
        """Return the ids of each line, closed by EOS, and the places of those that were cut.

        A line without tokens gives an empty list; one of more than `max_tokens` is cut with a warning, or refused
        (DataError) where `strict` is set. `first` is the number of the first line, for messages.
        """
        encoded = self.tokenizers.source.encode(self._clean(lines))
        limit, cut = self.max_tokens, set()
        for place, ids in enumerate(encoded):
            if limit is not None and len(ids) > limit:
                message = f"line {first + place} has {len(ids)} tokens, more than the {limit} of the training data"
                if strict:
                    raise DataError(f"{message}; split it")
                warn(f"{message}; translating its beginning")
                del ids[limit:]
                cut.add(place)
        return [[*ids, EOS] if ids else [] for ids in encoded], cut

    @silence()
    def lengths(self, texts: Texts) -> list[int]:
        if not texts or isinstance(texts, str) or not all(isinstance(text, tuple) for text in texts):
            return [len(ids) for ids in self.tokenizers.source.encode(self._clean(check_texts(texts)))]
        sources, targets = (self._clean(check_texts(side)) for side in zip(*texts, strict=True))
        read, written = self.tokenizers.source.encode(sources), self.tokenizers.target.encode(targets)
        return [max(map(len, both)) for both in zip(read, written, strict=True)]

    @silence()
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        if "score" not in self.answers:
            raise self._lacks("score")
        from phmctl.decoding.beam import forced_scores, pad

        checked, outputs = check_texts(sources, "sources"), check_texts(targets, "targets")
        if len(checked) != len(outputs):
            raise UserError(f"{len(checked)} sources and {len(outputs)} targets: give one target for each source")
        rows, _ = self.token_ids(checked, strict=True)
        wanted = self.tokenizers.target.encode(self._clean(outputs))
        scores = [-math.inf if ids else 0.0 for ids in wanted]  # of sources without a token
        lengths = [max(len(row), len(ids) + 1) if row else 0 for row, ids in zip(rows, wanted, strict=True)]
        for places in plan(lengths, self.settings.batch_tokens):
            source = pad([rows[place] for place in places]).to(self.engine.device)  # (B, S)
            found = forced_scores(self.engine.model, source, [wanted[place] for place in places])
            for place, score in zip(places, found, strict=True):
                scores[place] = score
        return scores

    @silence()
    def encode(self, texts: Sequence[str]) -> "Tensor":
        if "encode" not in self.answers:
            raise self._lacks("encode")
        import torch

        from phmctl.decoding.beam import pad
        from phmctl.nn.layers import mean_pool

        model = self.engine.model
        rows, _ = self.token_ids(check_texts(texts))
        vectors = torch.zeros(len(rows), model.target_embedding.embedding_dim)  # (N, d)
        with torch.no_grad():
            for places in plan([len(row) for row in rows], self.settings.batch_tokens):
                memory = model.encode(pad([rows[place] for place in places]).to(self.engine.device))
                vectors[places] = mean_pool(memory.states, memory.mask[:, 0, 0]).float().cpu()  # (B, d)
        return vectors

    def _clean(self, lines: Sequence[str]) -> list[str]:
        return [clean_line(line, self.cleaning) if line.strip() else "" for line in lines]

    def _detokenise(self, hypothesis: Hypothesis, cut: bool = False) -> Translation:
        text = self.tokenizers.target.decode(hypothesis.tokens)
        # A byte-level vocabulary can spell a line break; one line in is one line out.
        text = text.replace("\r", " ").replace("\n", " ")
        return Translation(text, hypothesis.score, hypothesis.log_prob, cut)


def as_json(candidates: Sequence[Translation]) -> dict[str, Any]:
    """Return the translations of a line as ``decode --json`` and ``serve`` have them."""
    names = ("text", "score", "log_prob")
    return {"translations": [{name: getattr(each, name) for name in names} for each in candidates]}


def plan(lengths: Sequence[int], batch_tokens: int) -> list[list[int]]:
    order = sorted((row for row, length in enumerate(lengths) if length), key=lambda row: (-lengths[row], row))
    batches: list[list[int]] = []
    for row in order:
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= batch_tokens:
            batches[-1].append(row)
        else:
            batches.append([row])
    return batches


def load_translator(
    run: Run,
    checkpoint: str = AUTO,
    device: str = "auto",
    decoding: DecodingSection | None = None,
    *,
    cleaned: bool = False,
    threads: int = 0,
    **answer: Any,
) -> Translator:
    """Load a run's model and tokenizers, ready to translate; or an export's.

    `decoding` replaces the recipe's settings of the search; `answer` are `n_best` and `strict` of the method so called.
    `cleaned`: the lines will be the run's own text, which has been cleaned already, and twice is once too often:
    ``&amp;lt;`` stands for ``&lt;``, and that for ``<``. `threads` are of an engine that has its own; 0 is its choice.

    Raises RunError, MissingExtraError (an export's engine is not installed), UserError (it cannot do what is asked).
    """
    recipe = run.recipe_of(TranslationRecipe)
    tokenizers, settings = load_tokenizers(run), decoding or recipe.decoding
    if isinstance(run, Export):
        check_export(run, checkpoint, device, precision=settings.precision)
        own = {"quantize": str(run.manifest.get("quantize")), "device": device}
        engine = open_engine(run.to, run.folder, recipe.model, tokenizers, **own, threads=threads)
    else:
        from phmctl.assembly import build_transformer, trained
        from phmctl.decoding.beam import TorchEngine
        from phmctl.nn.convert import to_dense

        bare = build_transformer(recipe.model, tokenizers.source.size, tokenizers.target.size, "meta")
        model = to_dense(trained(bare, run, checkpoint, pick_device(device)), inplace=True)
        target = next(model.parameters()).device
        if settings.precision == "bfloat16" and takes_bfloat16(target, "decoding.precision"):
            model = model.bfloat16()
        engine = TorchEngine(model, target)
    cleaning = Cleaning() if cleaned else load_cleaning(run)
    how: dict[str, Any] = {"max_tokens": recipe.data.max_tokens, "cleaning": cleaning, **answer}
    return Translator(engine, tokenizers, settings, **how, about=about_run(run, checkpoint))


def open_engine(
    to: str,
    folder: Path,
    section: TransformerSection,
    tokenizers: TokenizerPair,
    *,
    quantize: str = "float32",
    device: str = "auto",
    threads: int = 0,
) -> Engine:
    """Return the engine of an export's files. Raises MissingExtraError, RunError."""
    if to == exports.CTRANSLATE2:
        from phmctl.decoding.ctranslate2_engine import CTranslate2Engine

        return CTranslate2Engine(folder / exports.MODEL, tokenizers, quantize, threads)
    if to == exports.ONNX:
        from phmctl.decoding.onnx_engine import OnnxEngine

        return OnnxEngine(folder, threads)
    from phmctl.assembly import build_transformer
    from phmctl.decoding.beam import TorchEngine
    from phmctl.models import plain
    from phmctl.nn.convert import to_dense

    target, generator = pick_device(device), "tied" if section.generator == "tied" else "dense"
    settings = {"projections": "separate", "embeddings": "dense", "embedding_width": None, "generator": generator}
    twin = section.dense_twin.model_copy(update=settings)
    model = build_transformer(twin, tokenizers.source.size, tokenizers.target.size, "meta")
    load_model(model, plain.read(folder)[1], folder, target)
    return TorchEngine(to_dense(model.eval(), inplace=True), target)
