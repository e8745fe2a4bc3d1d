"""Raw text in, raw text out: tokenise, sort by length, batch by tokens, search, detokenise, restore the order.

What searches a batch of ids is an engine: torch's (:mod:`phmctl.decoding.beam`), or an export's. All mean the same by a
beam, a length penalty, a longest output and a score: that module says what. What an engine wants is imported with it:
torch is not for an export to CTranslate2.
"""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

from phmctl import exports
from phmctl.console import warn
from phmctl.data.card import Cleaning
from phmctl.data.clean import clean_line
from phmctl.data.copies import load_cleaning, load_tokenizers
from phmctl.data.special import EOS
from phmctl.data.tokenizer import TokenizerPair
from phmctl.devices import takes_bfloat16
from phmctl.errors import DataError, RecipeError, RunError, UserError
from phmctl.exports import Export
from phmctl.recipe.documents import change
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import DecodingSection, TranslationRecipe
from phmctl.runs import AUTO, Run

if TYPE_CHECKING:
    from phmctl.models.transformer import Transformer


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One finished output."""

    tokens: list[int]  # the ids, without beginning and end of sentence
    score: float  # `log_prob` over the length penalty
    log_prob: float  # natural logarithm of the probability of `tokens` and the end of the sentence


def length_penalty(length: Any, alpha: float) -> Any:
    """Return ``((5 + length) / 6) ** alpha`` (Wu et al. 2016, eq. 14); `length`, a tensor or a number, counts EOS."""
    return ((5.0 + length) / 6.0) ** alpha


TORCH, CTRANSLATE2, ONNX = "torch", "ctranslate2", "onnx"
ENGINES = (TORCH, CTRANSLATE2, ONNX)


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
        ...


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
    """One translation of a line.

    Attributes:
        text: what the line was translated to.
        score: the log-probability over the length penalty of Wu et al. (2016), eq. 14; the beam is ranked by it.
        log_prob: natural logarithm of the probability that the model gives the text and its end.
        cut: whether the line was longer than the model knows, so that only its beginning was translated.
    """

    text: str
    score: float
    log_prob: float
    cut: bool = False


EMPTY = Translation("", 0.0, 0.0)


class Translator:
    def __init__(
        self,
        engine: Engine,
        tokenizers: TokenizerPair,
        settings: DecodingSection,
        *,
        max_source_tokens: int | None = None,
        cleaning: Cleaning | None = None,
    ) -> None:
        self.engine, self.tokenizers, self.settings = engine, tokenizers, settings
        self.max_source_tokens = max_source_tokens
        self.cleaning = cleaning or Cleaning()

    def translate(
        self,
        lines: Sequence[str],
        *,
        n_best: int = 1,
        strict: bool = False,
        numbers: Sequence[int] | None = None,
        advance: Callable[[int], None] = lambda count: None,
    ) -> list[list[Translation]]:
        """Translate lines; the i-th result belongs to the i-th line, best first.

        A line without tokens gives one empty translation; one of more than `max_source_tokens` is cut with a warning,
        or refused (DataError) where `strict` is set. `numbers` are those of the lines, for messages; None: 1, 2, …
        """
        sources, cut = self.encode(lines, strict=strict, numbers=numbers)
        results: list[list[Translation]] = [[EMPTY] for _ in lines]
        advance(sources.count([]))
        for rows in plan([len(source) for source in sources], self.settings.batch_tokens):
            found = self.search([sources[row] for row in rows], n_best=n_best)
            for row, hypotheses in zip(rows, found, strict=True):
                results[row] = [self._detokenise(hypothesis, row in cut) for hypothesis in hypotheses]
            advance(len(rows))
        return results

    def search(self, sources: Sequence[Sequence[int]], *, n_best: int = 1) -> list[list[Hypothesis]]:
        allowed = self.tokenizers.target.size
        return self.engine.search(sources, self.settings, allowed=allowed, n_best=n_best)

    def with_settings(self, settings: DecodingSection) -> Self:
        """Return a translator by the same engine that searches by other settings."""
        other = copy(self)
        other.settings = settings
        return other

    def encode(
        self, lines: Sequence[str], *, strict: bool, numbers: Sequence[int] | None = None
    ) -> tuple[list[list[int]], set[int]]:
        """Return the ids of each line, closed by EOS, and the places of those that were cut; see :meth:`translate`.

        A line without tokens gives an empty list.
        """
        encoded = self.tokenizers.source.encode(self._clean(lines))
        limit, cut = self.max_source_tokens, set()
        for place, (ids, number) in enumerate(zip(encoded, numbers or count(1), strict=False)):
            if limit is not None and len(ids) > limit:
                message = f"line {number} has {len(ids)} tokens, more than the {limit} of the training data"
                if strict:
                    raise DataError(f"{message}; split it, or leave strict out to translate its beginning")
                warn(f"{message}; translating its beginning")
                del ids[limit:]
                cut.add(place)
        return [[*ids, EOS] if ids else [] for ids in encoded], cut

    def lengths(self, lines: Sequence[str]) -> list[int]:
        """Return the tokens of each line, as `max_source_tokens` limits them."""
        return [len(ids) for ids in self.tokenizers.source.encode(self._clean(lines))]

    def encode_targets(self, lines: Sequence[str]) -> list[list[int]]:
        return self.tokenizers.target.encode(self._clean(lines))

    def _clean(self, lines: Sequence[str]) -> list[str]:
        return [clean_line(line, self.cleaning) if line.strip() else "" for line in lines]

    def _detokenise(self, hypothesis: Hypothesis, cut: bool = False) -> Translation:
        text = self.tokenizers.target.decode(hypothesis.tokens)
        # A byte-level vocabulary can spell a line break; one line in is one line out.
        text = text.replace("\r", " ").replace("\n", " ")
        return Translation(text, hypothesis.score, hypothesis.log_prob, cut)


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
) -> Translator:
    """Load a run's model and tokenizers, ready to translate; or an export's.

    `decoding` replaces the recipe's settings of the search. `cleaned`: the lines will be the run's own text, which has
    been cleaned already, and twice is once too often: ``&amp;lt;`` stands for ``&lt;``, and that for ``<``. `threads`
    are of an engine that has its own; 0 leaves its choice. torch's are the process's.

    RunError: something is missing or damaged; MissingExtraError: an export's engine is not installed; UserError: the
    engine cannot do what is asked.
    """
    recipe = run.recipe_of(TranslationRecipe)
    tokenizers, settings = load_tokenizers(run), decoding or recipe.decoding
    if isinstance(run, Export):
        folder = run.checkpoint(checkpoint)
        for option, value in (("execution", settings.execution), ("precision", settings.precision)):
            if value is not None:
                raise UserError(f"--{option} {value}: {folder} has its own; leave it out, or decode with the run")
        run.verify()
        own = {"quantize": str(run.manifest.get("quantize")), "device": device}
        engine = open_engine(run.to, folder, recipe.model, tokenizers, **own, threads=threads)
    else:
        from phmctl.assembly import answering
        from phmctl.decoding.beam import TorchEngine

        model = answering(load_transformer(run, checkpoint, device, tokenizers), settings.execution)
        target = next(model.parameters()).device
        if settings.precision == "bfloat16" and takes_bfloat16(target, "decoding.precision"):
            model = model.bfloat16()
        engine = TorchEngine(model, target)
    cleaning = Cleaning() if cleaned else load_cleaning(run)
    return Translator(engine, tokenizers, settings, max_source_tokens=recipe.data.max_tokens, cleaning=cleaning)


def load_transformer(run: Run, checkpoint: str, device: str, tokenizers: TokenizerPair) -> "Transformer":
    """Load a run's trained model as it was trained, in evaluation mode. Raises RunError."""
    from phmctl.assembly import build_transformer, trained
    from phmctl.devices import pick_device

    section = run.recipe_of(TranslationRecipe).model
    model = build_transformer(section, tokenizers.source.size, tokenizers.target.size, "meta")
    return trained(model, run, checkpoint, pick_device(device))


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
    """Return the engine of an export's files. Raises MissingExtraError, RunError, UserError."""
    if to != exports.SAFETENSORS and device not in ("auto", "cpu"):
        raise UserError(f"--device {device}: an export to {to} runs on the CPU here; leave it out")
    if to == exports.CTRANSLATE2:
        from phmctl.decoding.ctranslate2_engine import CTranslate2Engine

        return CTranslate2Engine(folder / exports.MODEL, tokenizers, quantize, threads)
    if to == exports.ONNX:
        from phmctl.decoding.onnx_engine import OnnxEngine

        return OnnxEngine(folder, threads)
    if to != exports.SAFETENSORS:
        raise exports.no_engine(folder)
    from phmctl.assembly import build_transformer
    from phmctl.checkpoints import load_model
    from phmctl.decoding.beam import TorchEngine
    from phmctl.devices import pick_device
    from phmctl.models import plain
    from phmctl.nn.convert import to_dense

    target, generator = pick_device(device), "tied" if section.generator == "tied" else "dense"
    settings = {"projections": "separate", "embeddings": "dense", "generator": generator}
    twin = section.dense_twin.model_copy(update=settings)
    model = build_transformer(twin, tokenizers.source.size, tokenizers.target.size, "meta")
    try:
        _, tensors = plain.read(folder)
    except Exception as error:  # each library has errors of its own
        raise RunError(f"the weights in {folder} cannot be read: {error}; make the export anew") from error
    load_model(model, tensors, folder, target)
    return TorchEngine(to_dense(model.eval(), inplace=True), target)
