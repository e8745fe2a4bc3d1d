"""The same model without a cache: what decoding costs when each step runs over the whole prefix again."""

from dataclasses import dataclass

import torch
from torch import Tensor

from phmctl.models.state import Memory
from phmctl.models.transformer import Transformer


@dataclass
class Prefixes:
    """All that an uncached search remembers: the memory, a row a prefix, and the prefixes (B, K, t)."""

    memory: Memory
    tokens: Tensor

    def reorder(self, parents: Tensor, sentences: Tensor | None = None) -> None:
        """Let each beam (B', K') continue from another of its sentence, and keep these sentences (B',) only."""
        kept = torch.arange(len(parents), device=parents.device) if sentences is None else sentences
        tokens, before = self.tokens[kept], self.tokens.shape[1]  # (B', K, t)
        self.memory = self.memory.select((kept[:, None] * before).expand_as(parents).flatten())
        self.tokens = tokens.gather(1, parents[:, :, None].expand(-1, -1, tokens.shape[2]))


class Uncached:
    """Gives beam search a Transformer's logits without keeping keys and values.

    Args:
        model: in evaluation mode.
        whole: score the vocabulary at every position of the prefix in each step, as a call of the model on source and
            prefix does. Otherwise at the last position only: the least that can be done without a cache.
    """

    def __init__(self, model: Transformer, *, whole: bool) -> None:
        self.model, self.whole = model, whole

    def encode(self, source: Tensor) -> Memory:
        """Encode source ids (B, S); this is done once."""
        return self.model.encode(source)

    def start(self, memory: Memory, beams: int, max_length: int) -> Prefixes:
        """Begin with empty prefixes."""
        count = len(memory.states)
        rows = torch.arange(count, device=memory.states.device).repeat_interleave(beams)  # (B*K,)
        return Prefixes(memory.select(rows), rows.new_empty(count, beams, 0))

    def step(self, tokens: Tensor, state: Prefixes) -> Tensor:
        """Map the newest tokens (B, K) to logits (B, K, V), over the whole prefixes."""
        state.tokens = torch.cat([state.tokens, tokens[:, :, None]], 2)  # (B, K, t)
        hidden = self.model.decode(state.memory, state.tokens.flatten(0, 1))  # (B*K, t, d)
        logits = self.model.logits(hidden if self.whole else hidden[:, -1:])[:, -1]  # (B*K, V)
        return logits.view(*tokens.shape, -1)
