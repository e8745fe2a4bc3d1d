"""The seam between translating text and searching ids: what searches a batch is an engine.

:class:`~phmctl.decoding.translator.Translator` cleans, tokenises, sorts, batches and detokenises; an engine gets one
batch of source ids and returns its hypotheses. Torch's beam search is one (:mod:`phmctl.decoding.torch_engine`); those
of exports are in :mod:`phmctl.engines`. All mean the same by a beam, a length penalty, a longest output and a score:
:mod:`phmctl.decoding.beam` says what.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from phmctl.errors import RecipeError
from phmctl.recipe.documents import change
from phmctl.recipe.schema import DecodingSection


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

        Args:
            sources: token ids, each closed by EOS.
            settings: beam, length penalty and longest output.
            allowed: ids from here on are never produced: the target tokenizer's size.
            n_best: hypotheses wanted, at most the beam.
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
