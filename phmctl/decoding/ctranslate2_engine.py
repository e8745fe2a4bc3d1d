"""CTranslate2's engine: the search runs in its own library, without torch.

It searches as :mod:`phmctl.decoding.beam` does: a sentence ends when `beam` hypotheses have ended. What differs is put
right here:

- It normalises by length ** alpha. That decides only the order of what was found, so all `beam` hypotheses are asked
  for and ordered by our penalty. (Where more have ended it leaves out the last ones of its own order: of very short
  outputs the lowest ranks of an n-best list can be others than torch's.)
- It renormalises where ids are forbidden, and cuts an output at the longest length instead of closing it. So what is
  returned is scored anew by forced decoding: scores are the model's own log-probabilities.
- It has one longest output a batch. A sentence whose hypotheses went beyond its own is searched again by itself.
"""

import importlib.machinery
import importlib.util
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from phmctl.data.special import BOS, EOS, PAD, SPECIAL_TOKENS
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.search import Hypothesis, length_penalty, longest_outputs
from phmctl.errors import RunError, missing
from phmctl.exports import CTRANSLATE2
from phmctl.recipe.schema import DecodingSection

_EXTENSION = "ctranslate2._ext"
_NEARLY_ZERO = 1e-6  # with no penalty at all it would end a search before `beam` hypotheses have ended

Ids = Sequence[int]


class CTranslate2Engine:
    name = CTRANSLATE2

    def __init__(self, folder: Path, tokenizers: TokenizerPair, quantize: str, threads: int = 0) -> None:
        library, how = load_library(), {"device": "cpu", "compute_type": quantize, "intra_threads": threads}
        try:
            self._model = library.Translator(str(folder), **how)
        except (RuntimeError, ValueError) as error:
            raise RunError(f"{folder} cannot be loaded by CTranslate2: {error}; make the export anew") from error
        self._source, self._target = tokenizers.source.vocabulary, tokenizers.target.vocabulary
        self._ids = {token: index for index, token in enumerate(self._target)}

    def search(
        self, sources: Sequence[Ids], settings: DecodingSection, *, allowed: int, n_best: int = 1
    ) -> list[list[Hypothesis]]:
        """Search one batch; see :class:`~phmctl.decoding.search.Engine`. `allowed` is the vocabulary, all of it."""
        limits = longest_outputs(sources, settings)
        found = self._search(sources, max(limits), settings)
        by_total = settings.model_copy(update={"alpha": 0.0})
        for row, limit in enumerate(limits):
            if limit < max(limits) and any(len(each.tokens) > limit for each in found[row]):
                found[row] = self._search([sources[row]], limit, settings)[0]
            if not all(each.ended for each in found[row]):  # what was cut took the place of shorter ones that ended
                found[row] += self._search([sources[row]], limit, by_total)[0]
        if n_best == 1 and all(each.ended for outputs in found for each in outputs):  # one is enough to score
            found = [[max(outputs, key=lambda each: each.score(settings.alpha))] for outputs in found]
        return [ranked[:n_best] for ranked in self._scored(sources, found, settings.alpha)]

    def _search(self, sources: Sequence[Ids], limit: int, settings: DecodingSection) -> "list[list[_Output]]":
        power = max(settings.alpha, _NEARLY_ZERO)
        options: dict[str, Any] = {
            "beam_size": settings.beam,
            "num_hypotheses": settings.beam,
            "length_penalty": power,
            "min_decoding_length": 0,
            "max_decoding_length": max(limit, 1),  # what is cut there is closed, and scored, by us
            "max_input_length": 0,
            "disable_unk": True,
            "suppress_sequences": [[SPECIAL_TOKENS[PAD]], [SPECIAL_TOKENS[BOS]]],
            "return_end_token": True,
            "return_scores": True,
        }
        results = self._model.translate_batch([self._words(source) for source in sources], **options)
        found: list[list[_Output]] = [[] for _ in results]
        for one, outputs in zip(results, found, strict=True):
            for words, score in zip(one.hypotheses, one.scores, strict=True):
                ids = [self._ids[word] for word in words]
                ended = ids[-1:] == [EOS]
                tokens = tuple(ids[:-1] if ended else ids[:limit])
                outputs.append(_Output(tokens, score * max(len(ids), 1) ** power, ended))
        return found

    def _scored(
        self, sources: Sequence[Ids], found: "Sequence[Sequence[_Output]]", alpha: float
    ) -> list[list[Hypothesis]]:
        """Return the outputs of each source with the model's own log-probabilities, best first, each once."""
        pairs = [(row, tokens) for row, outputs in enumerate(found) for tokens in {each.tokens: 0 for each in outputs}]
        results = self._model.score_batch(
            [self._words(sources[row]) for row, _ in pairs],
            [[self._target[index] for index in tokens] for _, tokens in pairs],
            max_input_length=0,
        )
        scored: list[list[Hypothesis]] = [[] for _ in found]
        for (row, tokens), result in zip(pairs, results, strict=True):
            total = math.fsum(result.log_probs)
            scored[row].append(Hypothesis(list(tokens), total / length_penalty(len(tokens) + 1, alpha), total))
        return [sorted(ranked, key=lambda each: -each.score) for ranked in scored]

    def _words(self, source: Ids) -> list[str]:
        return [self._source[index] for index in source]


class _Output(NamedTuple):
    """What the library found: ids without EOS, its own log-probability, and whether it ended with EOS."""

    tokens: tuple[int, ...]
    log_prob: float
    ended: bool

    def score(self, alpha: float) -> float:
        return self.log_prob / float(length_penalty(len(self.tokens) + 1, alpha))


def load_library() -> Any:
    """Return CTranslate2's compiled module.

    The package around it imports converters for other libraries, and torch with them where it is installed: four
    times as long as all else. Nothing of that is wanted to translate.
    """
    if _EXTENSION in sys.modules:
        return sys.modules[_EXTENSION]
    package = importlib.util.find_spec("ctranslate2")
    places = None if package is None else package.submodule_search_locations
    found = None if places is None else importlib.machinery.PathFinder.find_spec(_EXTENSION, list(places))
    if found is None or found.loader is None:
        raise missing("ctranslate2", "ctranslate2")
    module = importlib.util.module_from_spec(found)
    sys.modules[_EXTENSION] = module
    found.loader.exec_module(module)
    return module
