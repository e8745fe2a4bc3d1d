"""Torch's own engine: :func:`~phmctl.decoding.beam.beam_search` of a model in this process."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from phmctl.data.special import BOS, EOS, PAD
from phmctl.decoding.beam import beam_search
from phmctl.decoding.engine import TORCH, Hypothesis, length_penalty, longest_outputs
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


@torch.no_grad()
def forced_scores(model: Any, source: Tensor, outputs: Sequence[Sequence[int]], *, alpha: float) -> list[Hypothesis]:
    """Score the given outputs, one a source sentence, in one pass without a cache."""
    whole = [torch.tensor([BOS, *tokens, EOS]) for tokens in outputs]
    target = pad_sequence(whole, batch_first=True, padding_value=PAD).to(source.device)  # (B, T+1)
    log_probs = torch.log_softmax(model.logits(model(source, target[:, :-1])).float(), -1)  # (B, T, V)
    gold = log_probs.gather(2, target[:, 1:, None])[:, :, 0]  # (B, T)
    lengths = torch.tensor([len(tokens) + 1 for tokens in outputs], device=source.device)  # (B,) with EOS
    inside = torch.arange(gold.shape[1], device=source.device) < lengths[:, None]  # (B, T)
    totals = gold.masked_fill(~inside, 0.0).double().sum(1).tolist()
    return [
        Hypothesis(list(tokens), total / length_penalty(len(tokens) + 1, alpha), total)
        for tokens, total in zip(outputs, totals, strict=True)
    ]
