"""A model small enough to enumerate: the logits are a row of a table, chosen by a hash of the prefix."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from phmctl.answering.base import Hypothesis, length_penalty
from phmctl.answering.beam import forced_scores
from phmctl.data import EOS, PAD


@dataclass
class FakeState:
    source: Tensor  # (B,) a hash of each source sentence
    prefixes: Tensor  # (B, K, t)

    def reorder(self, parents: Tensor, sentences: Tensor | None = None) -> None:
        if sentences is not None:
            self.source, self.prefixes = self.source[sentences], self.prefixes[sentences]
        self.prefixes = self.prefixes.gather(1, parents[:, :, None].expand(-1, -1, self.prefixes.shape[2]))


class FakeModel:
    """Logits depend on the source without padding and on the whole prefix. They are sharp, so ties are rare."""

    def __init__(self, seed: int, vocabulary: int, sharpness: float = 3.0, end_bias: float = 0.0) -> None:
        self.table = torch.randn(997, vocabulary, generator=torch.Generator().manual_seed(seed)) * sharpness
        self.table[:, EOS] += end_bias
        self.steps = 0
        self.rows = 0

    def encode(self, source: Tensor) -> Tensor:
        weights = torch.arange(1, source.shape[1] + 1) * 31
        return torch.where(source == PAD, 0, source * weights).sum(1)

    def start(self, memory: Tensor, beams: int, max_length: int) -> FakeState:
        return FakeState(memory, torch.empty(len(memory), beams, 0, dtype=torch.long))

    def step(self, tokens: Tensor, state: FakeState) -> Tensor:
        state.prefixes = torch.cat([state.prefixes, tokens[:, :, None]], 2)
        self.steps += 1
        self.rows += tokens.numel()
        return self._rows(state.source[:, None], state.prefixes)

    def __call__(self, source: Tensor, target_in: Tensor) -> Tensor:
        """Return the logits of every prefix (B, T, V); the hidden states of this model are its logits."""
        keys = self.encode(source)
        return torch.stack([self._rows(keys, target_in[:, : t + 1]) for t in range(target_in.shape[1])], 1)

    def logits(self, hidden: Tensor) -> Tensor:
        return hidden

    def _rows(self, keys: Tensor, prefixes: Tensor) -> Tensor:
        state = keys.expand(prefixes.shape[:-1]).clone()
        for position in range(prefixes.shape[-1]):
            state = (state * 131 + prefixes[..., position] * 17 + 7) % 100_003
        return self.table[state % 997].clone()


def sources(rows: list[list[int]]) -> Tensor:
    """Pad token lists, each closed by EOS, to (B, S)."""
    longest = max(len(row) for row in rows) + 1
    return torch.tensor([[*row, EOS] + [PAD] * (longest - len(row) - 1) for row in rows])


def forced(model: Any, source: torch.Tensor, outputs: Sequence[list[int]], alpha: float) -> list[Hypothesis]:
    """Return the outputs as hypotheses, scored by forced decoding and the length penalty."""
    scored = zip(outputs, forced_scores(model, source, outputs), strict=True)
    return [Hypothesis(tokens, total / length_penalty(len(tokens) + 1, alpha), total) for tokens, total in scored]
