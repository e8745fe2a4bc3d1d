"""Translate lines with an engine: clean, tokenize, sort by length, batch, search, detokenize, restore the order."""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from phmctl.answering.base import (
    TORCH,
    Advance,
    Document,
    Hypothesis,
    Line,
    Texts,
    change_decoding,
    check_texts,
    export_errors,
    ignore,
    plan,
)
from phmctl.console import silence, warn
from phmctl.data import EOS
from phmctl.data.card import Cleaning
from phmctl.data.rows import clean_line
from phmctl.data.tokenizer import TokenizerPair
from phmctl.errors import DataError, UserError
from phmctl.recipe.schema import DecodingSection

if TYPE_CHECKING:
    from torch import Tensor

    from phmctl.answering.beam import BeamEngine
    from phmctl.answering.ctranslate2 import CTranslate2Engine


@dataclass(frozen=True, slots=True)
class Translation:
    """A translation of a line."""

    text: str
    score: float  # `log_prob` over the length penalty (Wu et al. 2016, eq. 14), by which the beam is ranked
    log_prob: float  # natural logarithm of the probability of the text and EOS
    cut: bool = False  # the line was longer than the model's limit, and only the beginning was translated


EMPTY = Translation("", 0.0, 0.0)


class Translator:
    """A trained translator, as :func:`phmctl.load` returns it.

    The methods print nothing and change no global state. Several threads may call them at once.

    Attributes:
        name: ``<recipe>/<variant>/<version>`` of the translator's run.
        task: ``translation``.
        methods: names of the methods that answer texts. An engine other than torch has ``translate`` alone.
        max_tokens: maximum length of a source in tokens, as counted by :meth:`lengths`. None: no limit.
        n_best: number of translations of a line in :meth:`answer`. None: the best one, without number and score.
        strict: whether :meth:`answer` raises an error for a line that is too long.
    """

    verb = "translating"  # label of the progress bar of ``decode``

    def __init__(
        self,
        engine: "BeamEngine | CTranslate2Engine",
        tokenizers: TokenizerPair,
        settings: DecodingSection,
        *,
        max_tokens: int | None = None,
        cleaning: Cleaning | None = None,
        n_best: int | None = None,
        strict: bool = False,
        about: Document | None = None,
    ) -> None:
        self.engine: Any = engine  # torch's has `model` and `device`
        self.tokenizers = tokenizers
        self.settings = settings
        self.max_tokens = max_tokens
        self.cleaning = cleaning or Cleaning()
        self.n_best = n_best
        self.strict = strict
        self.methods = ("translate", "score", "encode") if engine.name == TORCH else ("translate",)
        self._about = about or {"name": "translator", "task": "translation"}
        self.name, self.task = str(self._about["name"]), str(self._about["task"])

    def __repr__(self) -> str:
        return f"<phmctl translator {self.name}: {', '.join(self.methods)}>"

    def about(self) -> Document:
        """Return a description as JSON values: name, task, folder, checkpoint, engine, device, settings, methods."""
        about = {
            **self._about,
            "engine": self.engine.name,
            "decoding": self.settings.model_dump(),
            "device": str(self.engine.device),
            "methods": list(self.methods),
        }
        if "encode" in self.methods:
            about["vectors"] = "the mean of the encoder's states over all positions"
        return about

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
        """Return the translations of each text, best first, by beam search.

        Args:
            texts: N texts of one line each. They are cleaned like the training text.
            beam: live prefixes of each sentence. 1 is greedy search. None: the recipe's value.
            alpha: exponent of the length penalty. None: the recipe's value.
            n_best: number of translations of each text, at most `beam`.
            strict: raise an error if a text is longer than `max_tokens`. By default the beginning is translated, and
                the translations have ``cut`` set.

        Returns:
            N lists of at most `n_best` translations, best first. A text without tokens has one empty translation.

        Raises:
            UserError: `texts` is not a list of strings, or `n_best` exceeds the beam.
            RecipeError: `beam` or `alpha` is out of range.
            DataError: a text is too long and `strict` is set, or a text is not valid Unicode.
        """
        settings = change_decoding(self.settings, beam=beam, alpha=alpha)
        if not 1 <= n_best <= settings.beam:
            raise UserError(f"n_best = {n_best} must be between 1 and beam = {settings.beam}")
        return self._translate(check_texts(texts), settings, n_best, strict)

    def answer(self, lines: Sequence[str], *, first: int = 1, advance: Advance = ignore) -> list[Line]:
        """Return the best translation of each line, or with `n_best` lines of number, rank, score and text.

        Warnings and numbers count lines from `first`.
        """
        translations = self._translate(lines, self.settings, self.n_best or 1, self.strict, first, advance)
        answers = []
        for number, candidates in enumerate(translations, first):
            text = candidates[0].text
            if self.n_best is not None:
                ranked = enumerate(candidates, start=1)
                text = "\n".join(f"{number}\t{rank}\t{item.score:.6f}\t{item.text}" for rank, item in ranked)
            answers.append((text, as_json(candidates)))
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
        sources, cut_rows = self.token_ids(lines, strict=strict, first=first)
        results: list[list[Translation]] = [[EMPTY] for _ in lines]
        advance(sources.count([]))
        allowed = self.tokenizers.target.size
        for rows in plan([len(source) for source in sources], settings.batch_tokens):
            with nullcontext() if self.engine.name == TORCH else export_errors(self._about["folder"]):
                batch = self.engine.search([sources[row] for row in rows], settings, allowed=allowed, n_best=n_best)
            for row, hypotheses in zip(rows, batch, strict=True):
                results[row] = [self._detokenise(hypothesis, row in cut_rows) for hypothesis in hypotheses]
            advance(len(rows))
        return results

    def token_ids(
        self, lines: Sequence[str], *, strict: bool = False, first: int = 1
    ) -> tuple[list[list[int]], set[int]]:
        """Return the ids of each line, closed by EOS, and the rows that were truncated to `max_tokens`.

        The ids of a line without tokens are empty. `first` is the number of the first line, for the warnings.

        Raises DataError, instead of a warning, if `strict` is set and a line is too long.
        """
        encoded = self.tokenizers.source.encode(self._clean(lines))
        limit = self.max_tokens
        cut_rows = set()
        for row, ids in enumerate(encoded):
            if limit is not None and len(ids) > limit:
                message = f"line {first + row} has {len(ids)} tokens, more than the {limit} of the training data"
                if strict:
                    raise DataError(f"{message}; split it")
                warn(f"{message}; translating its beginning")
                del ids[limit:]
                cut_rows.add(row)
        return [[*ids, EOS] if ids else [] for ids in encoded], cut_rows

    @silence()
    def lengths(self, texts: Texts) -> list[int]:
        """Return the number of tokens of each text, without EOS. In a pair (source, target) the longer text counts."""
        if not texts or isinstance(texts, str) or not all(isinstance(text, tuple) for text in texts):
            return [len(ids) for ids in self.tokenizers.source.encode(self._clean(check_texts(texts)))]
        sources, targets = (self._clean(check_texts(side)) for side in zip(*texts, strict=True))
        source_ids = self.tokenizers.source.encode(sources)
        target_ids = self.tokenizers.target.encode(targets)
        return [max(len(source), len(target)) for source, target in zip(source_ids, target_ids, strict=True)]

    @silence()
    def score(self, sources: Sequence[str], targets: Sequence[str]) -> list[float]:
        """Return the log-probability of each target as the translation of the source (forced decoding).

        It is the sum of the natural logarithms over the target's tokens and EOS, like ``log_prob`` of a translation.
        The only translation of an empty source is the empty text, which scores 0. Any other text scores −∞.

        Args:
            sources: N texts.
            targets: N texts. A word outside the target vocabulary is scored as the unknown word.

        Raises:
            UserError: the engine cannot score, or the lists differ in length.
            DataError: a source is longer than `max_tokens`.
        """
        engine = self._torch_engine("score")
        source_texts = check_texts(sources, "sources")
        target_texts = check_texts(targets, "targets")
        if len(source_texts) != len(target_texts):
            raise UserError(
                f"the numbers of sources and targets are {len(source_texts)} and {len(target_texts)}: give equal ones"
            )
        source_ids, _ = self.token_ids(source_texts, strict=True)
        target_ids = self.tokenizers.target.encode(self._clean(target_texts))
        scores = [-math.inf if ids else 0.0 for ids in target_ids]  # replaced unless the source is empty
        pairs = zip(source_ids, target_ids, strict=True)
        lengths = [max(len(source), len(target) + 1) if source else 0 for source, target in pairs]
        for rows in plan(lengths, self.settings.batch_tokens):
            batch = engine.score([source_ids[row] for row in rows], [target_ids[row] for row in rows])
            for row, score in zip(rows, batch, strict=True):
                scores[row] = score
        return scores

    @silence()
    def encode(self, texts: Sequence[str]) -> "Tensor":
        """Return the mean of the encoder's states over all positions, including EOS, (N, d) float32 on the CPU.

        A text without tokens gives zeros. Long texts are cut. Raises UserError for an engine other than torch.
        """
        engine = self._torch_engine("encode")
        sources, _ = self.token_ids(check_texts(texts))
        return engine.encode(sources, plan([len(source) for source in sources], self.settings.batch_tokens))

    def _torch_engine(self, method: str) -> "BeamEngine":
        if method not in self.methods:
            raise UserError(f"{self.name} cannot {method}: its engine {self.engine.name} can only translate")
        return cast("BeamEngine", self.engine)

    def _clean(self, lines: Sequence[str]) -> list[str]:
        return [clean_line(line, self.cleaning) if line.strip() else "" for line in lines]

    def _detokenise(self, hypothesis: Hypothesis, cut: bool = False) -> Translation:
        text = self.tokenizers.target.decode(hypothesis.tokens)
        text = text.replace("\r", " ").replace("\n", " ")  # a byte-level vocabulary can spell a line break
        return Translation(text, hypothesis.score, hypothesis.log_prob, cut)


def as_json(candidates: Sequence[Translation]) -> Document:
    """Return the translations of a line in the form of ``decode --json`` and ``serve``."""
    translations = [{"text": item.text, "score": item.score, "log_prob": item.log_prob} for item in candidates]
    return {"translations": translations}
