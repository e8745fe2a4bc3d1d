"""The seam between translating text and searching ids: what searches a batch is an engine.

:class:`~phmctl.decoding.translator.Translator` cleans, tokenises, sorts, batches and detokenises; an engine gets one
batch of source ids and returns its hypotheses. Torch's beam search is one (:mod:`phmctl.decoding.torch_engine`); those
of exports are in :mod:`phmctl.engines`. All mean the same by a beam, a length penalty, a longest output and a score:
:mod:`phmctl.decoding.beam` says what.
"""

from collections.abc import Sequence
from typing import Protocol

from phmctl.decoding.hypothesis import Hypothesis
from phmctl.recipe.schema import DecodingSection

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
