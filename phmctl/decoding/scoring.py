"""The model's own score of a given output (forced decoding)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from phmctl.data.special import BOS, EOS, PAD
from phmctl.decoding.hypothesis import Hypothesis, length_penalty


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
