"""Torch's own engine: :func:`~phmctl.decoding.beam.beam_search` of a model in this process."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from phmctl.data.special import PAD
from phmctl.decoding.beam import beam_search
from phmctl.decoding.engine import TORCH, longest_outputs
from phmctl.decoding.hypothesis import Hypothesis
from phmctl.recipe.schema import DecodingSection


class TorchEngine:
    """Beam search of a :class:`phmctl.decoding.beam.Seq2Seq` on `device`, in evaluation mode."""

    name = TORCH

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model, self.device = model, device

    def search(
        self, sources: Sequence[Sequence[int]], settings: DecodingSection, *, allowed: int, n_best: int = 1
    ) -> list[list[Hypothesis]]:
        """Search one batch; see :class:`~phmctl.decoding.engine.Engine`."""
        return beam_search(
            self.model,
            pad(sources).to(self.device),
            beam=settings.beam,
            alpha=settings.alpha,
            max_lengths=longest_outputs(sources, settings),
            allowed=allowed,
            n_best=n_best,
        )


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows of ids as one tensor (B, S), PAD behind the shorter ones."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)
