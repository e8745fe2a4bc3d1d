"""Search with CTranslate2's library, without torch.

CTranslate2 searches like :mod:`phmctl.answering.beam`: a sentence ends when `beam` hypotheses have ended. This module
corrects three differences:

- CTranslate2 normalises scores by length ** alpha. This affects only the order of the hypotheses, so all `beam`
  hypotheses are requested and sorted by our score. (If more than `beam` hypotheses have ended, CTranslate2 drops the
  hypothesis that it scores worst, so the lowest ranks of an n-best list of very short outputs can differ from torch's.)
- CTranslate2 renormalises the softmax when it forbids tokens, and truncates an output at the longest length instead of
  closing it. Hypotheses are therefore scored again by forced decoding, which gives the model's log-probabilities.
- CTranslate2 has one length limit for each batch. A sentence with hypotheses beyond its own limit is searched again
  alone.
"""

import importlib.machinery
import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phmctl.answering.base import Hypothesis, length_penalty, longest_outputs
from phmctl.data import BOS, EOS, PAD, SPECIAL_TOKENS
from phmctl.data.tokenizer import TokenizerPair
from phmctl.errors import missing
from phmctl.recipe.schema import DecodingSection

_EXTENSION = "ctranslate2._ext"
_SMALLEST_PENALTY = 1e-6  # without any penalty CTranslate2 ends a search before `beam` hypotheses have ended

Ids = Sequence[int]


class _Output(NamedTuple):
    """An output of CTranslate2's search."""

    tokens: tuple[int, ...]  # ids without EOS
    log_prob: float  # CTranslate2's, renormalised over the allowed tokens
    ended: bool  # with EOS. Otherwise the output is truncated at the length limit

    def score(self, alpha: float) -> float:
        return self.log_prob / float(length_penalty(len(self.tokens) + 1, alpha))


class CTranslate2Engine:
    name = "ctranslate2"
    device = "cpu"

    def __init__(self, folder: Path, tokenizers: TokenizerPair, quantize: str, threads: int = 0) -> None:
        library = load_library()
        self._model = library.Translator(str(folder), device=self.device, compute_type=quantize, intra_threads=threads)
        self._source_tokens = tokenizers.source.vocabulary
        self._target_tokens = tokenizers.target.vocabulary
        self._target_ids = {token: index for index, token in enumerate(self._target_tokens)}

    def search(
        self, sources: Sequence[Ids], settings: DecodingSection, *, allowed: int, n_best: int = 1
    ) -> list[list[Hypothesis]]:
        """Search one batch. See :meth:`phmctl.answering.beam.BeamEngine.search`. `allowed` is the whole vocabulary."""
        limits = longest_outputs(sources, settings)
        outputs = self._search(sources, max(limits), settings)
        without_penalty = settings.model_copy(update={"alpha": 0.0})
        for row, limit in enumerate(limits):
            if any(len(output.tokens) > limit for output in outputs[row]):
                outputs[row] = self._search([sources[row]], limit, settings)[0]
            if not all(output.ended for output in outputs[row]):  # truncated outputs displaced shorter ended ones
                outputs[row] += self._search([sources[row]], limit, without_penalty)[0]
        if n_best == 1 and all(output.ended for candidates in outputs for output in candidates):
            # Without truncated outputs the best is known, and only the best is scored again.
            outputs = [[max(candidates, key=lambda output: output.score(settings.alpha))] for candidates in outputs]
        return [hypotheses[:n_best] for hypotheses in self._rescore(sources, outputs, settings.alpha)]

    def _search(self, sources: Sequence[Ids], limit: int, settings: DecodingSection) -> list[list[_Output]]:
        penalty = max(settings.alpha, _SMALLEST_PENALTY)
        results = self._model.translate_batch(
            [self._tokens_of(source) for source in sources],
            beam_size=settings.beam,
            num_hypotheses=settings.beam,
            length_penalty=penalty,
            min_decoding_length=0,
            max_decoding_length=max(limit, 1),
            max_input_length=0,
            disable_unk=True,
            suppress_sequences=[[SPECIAL_TOKENS[PAD]], [SPECIAL_TOKENS[BOS]]],
            return_end_token=True,
            return_scores=True,
        )
        outputs: list[list[_Output]] = []
        for result in results:
            candidates = []
            for tokens, score in zip(result.hypotheses, result.scores, strict=True):
                ids = [self._target_ids[token] for token in tokens]
                ended = ids[-1:] == [EOS]
                log_prob = score * max(len(ids), 1) ** penalty
                candidates.append(_Output(tuple(ids[:-1] if ended else ids[:limit]), log_prob, ended))
            outputs.append(candidates)
        return outputs

    def _rescore(
        self, sources: Sequence[Ids], outputs: Sequence[Sequence[_Output]], alpha: float
    ) -> list[list[Hypothesis]]:
        """Return the distinct outputs of each source with the model's log-probabilities, best first."""
        pairs = []
        for row, candidates in enumerate(outputs):
            distinct = dict.fromkeys(output.tokens for output in candidates)
            pairs += [(row, tokens) for tokens in distinct]
        results = self._model.score_batch(
            [self._tokens_of(sources[row]) for row, _ in pairs],
            [[self._target_tokens[index] for index in tokens] for _, tokens in pairs],
            max_input_length=0,
        )
        hypotheses: list[list[Hypothesis]] = [[] for _ in outputs]
        for (row, tokens), result in zip(pairs, results, strict=True):
            log_prob = math.fsum(result.log_probs)
            score = log_prob / length_penalty(len(tokens) + 1, alpha)
            hypotheses[row].append(Hypothesis(list(tokens), score, log_prob))
        return [sorted(ranked, key=lambda hypothesis: -hypothesis.score) for ranked in hypotheses]

    def _tokens_of(self, source: Ids) -> list[str]:
        return [self._source_tokens[index] for index in source]


def load_library() -> Any:
    """Return CTranslate2's compiled module, without importing the package that contains it.

    The package imports converters for other libraries, and torch if it is installed. This takes four times as long as
    everything else, and translating needs none of it.
    """
    if _EXTENSION in sys.modules:
        return sys.modules[_EXTENSION]
    package = importlib.util.find_spec("ctranslate2")
    if package is None or package.submodule_search_locations is None:
        raise missing("ctranslate2", "ctranslate2")
    folders = list(package.submodule_search_locations)
    extension = importlib.machinery.PathFinder.find_spec(_EXTENSION, folders)
    if extension is None or extension.loader is None:
        raise missing("ctranslate2", "ctranslate2")
    module = importlib.util.module_from_spec(extension)
    sys.modules[_EXTENSION] = module
    extension.loader.exec_module(module)
    return module
