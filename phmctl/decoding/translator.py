"""Raw text in, raw text out: tokenise, sort by length, batch by tokens, search, detokenise, restore the order."""

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass
from itertools import count
from typing import Self

from phmctl.console import warn
from phmctl.data.card import Cleaning
from phmctl.data.clean import clean_line
from phmctl.data.special import EOS
from phmctl.data.tokenizer import TokenizerPair
from phmctl.decoding.engine import Engine, Hypothesis
from phmctl.errors import DataError
from phmctl.recipe.schema import DecodingSection


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
    """An engine with its tokenizers, ready to translate lines."""

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
        """Return the ids of given outputs, without BOS and EOS."""
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
