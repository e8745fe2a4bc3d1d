"""A pointer: a decoder that copies tokens of the source beside choosing them from the vocabulary."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.nn.build import LinearBuilder
from phmctl.nn.loss import wide

_NONE = -1e30  # the logarithm of no probability; finite, so that its gradients are zero and not NaN
REACH = 3  # tokens in front, by which a place in the source is found again
_FOLLOWS = 4.0  # log odds that each of them is worth before training


@dataclass(frozen=True)
class Pointed:
    """What a pointer points at: a source's tokens.

    Attributes:
        keys: (B, S, d).
        tokens: (B, S) ids.
        before: (B, S, REACH) ids, the tokens in front of each, nearest first; in front of the first the start's.
        mask: (B, 1, S), true where a token stands.
    """

    keys: Tensor
    tokens: Tensor
    before: Tensor
    mask: Tensor

    def select(self, sentences: Tensor) -> "Pointed":
        """Keep some sentences: indices (B',)."""
        return Pointed(*(part[sentences] for part in (self.keys, self.tokens, self.before, self.mask)))


class Pointer(nn.Module):
    """Mixes the softmax over the vocabulary with one over the source's tokens x (See et al. 2017, eq. 8 and 9).

    ``p(y) = g·softmax(W h)[y] + (1 − g)·Σ_s a_s·[x_s = y]``, with the gate ``g = σ(u h + c)`` and an attention of one
    head of its own, ``a = softmax(Q h · K m_s / √d + Σ_k (4 + v_k h + b_k)·[the last k tokens are those before x_s])``,
    k = 1, 2, 3, for decoder states h and encoder states m. The sum is ours: it favours going on behind what was
    produced last, so that an untrained pointer copies the source from left to right, and training finds where not to.
    Both sides must share their ids.

    Args:
        builder: makes Q and K.
        width: d.
    """

    def __init__(self, builder: LinearBuilder, width: int) -> None:
        super().__init__()
        self.query = builder.linear(width, width)
        self.key = builder.linear(width, width)
        self.gates = LinearBuilder("real", 1, device=builder.device).linear(width, 1 + REACH)

    def read(self, states: Tensor, mask: Tensor, tokens: Tensor, start: int) -> Pointed:
        """Prepare a source to be pointed at.

        Args:
            states: of the encoder, (B, S, d).
            mask: (B, 1, 1, S), true where a token stands.
            tokens: ids (B, S).
            start: the id that begins an output.
        """
        return Pointed(self.key(states), tokens, in_front(tokens, start)[:, :-1], mask[:, 0])

    def forward(self, logits: Tensor, hidden: Tensor, last: Tensor, source: Pointed) -> Tensor:
        """Return log p (B, T, V).

        Args:
            logits: W h, (B, T, V).
            hidden: h, (B, T, d).
            last: the tokens in front of each that is to be chosen, nearest first, ids (B, T, REACH).
            source: what may be copied.
        """
        generate, copy, attention = self._look(hidden, last, source)
        places = source.tokens[:, None].expand(attention.shape)  # (B, T, S)
        shares = wide(logits).softmax(-1) * generate.exp()  # (B, T, V)
        shares = shares.scatter_add(2, places, (attention + copy).exp())
        return shares.clamp_min(torch.finfo(shares.dtype).tiny).log()

    def loss(
        self,
        logits: Tensor,
        hidden: Tensor,
        last: Tensor,
        source: Pointed,
        labels: Tensor,
        *,
        smoothing: float = 0.0,
        ignore: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Return the summed loss and negative log-likelihood of labels (B, T), as ``vocabulary_loss`` does.

        ``Σ (1 − ε)·(−log p[label]) + ε/V·Σ_v (−log softmax(W h)[v])``: the smoothing is the vocabulary's alone, for no
        more than a sentence's tokens can be copied.
        """
        kept = labels != ignore  # (B, T)
        generate, copy, attention = self._look(hidden, last, source)
        logs = wide(logits).log_softmax(-1)  # (B, T, V)
        generated = logs.gather(2, labels[:, :, None])  # (B, T, 1)
        same = source.tokens[:, None] == labels[:, :, None]  # (B, T, S)
        copied = attention.masked_fill(~same, _NONE).logsumexp(-1, keepdim=True)  # (B, T, 1)
        nats = -torch.logaddexp(generate + generated, copy + copied)[:, :, 0]  # (B, T)
        loss = (1 - smoothing) * nats - smoothing * logs.mean(-1) if smoothing else nats
        return (loss * kept).sum(), (nats * kept).sum().detach()

    def _look(self, hidden: Tensor, last: Tensor, source: Pointed) -> tuple[Tensor, Tensor, Tensor]:
        """Return log g and log (1 − g), (B, T, 1) each, and log a, (B, T, S)."""
        gate, *bonuses = wide(self.gates(hidden)).chunk(1 + REACH, dim=-1)  # (B, T, 1) each
        query = self.query(hidden) * hidden.shape[-1] ** -0.5
        scores = wide(query @ source.keys.transpose(1, 2))  # (B, T, S)
        found = torch.ones_like(scores, dtype=torch.bool)
        for place, bonus in enumerate(bonuses):
            found = found & (source.before[:, None, :, place] == last[:, :, None, place])  # (B, T, S)
            scores = scores + (_FOLLOWS + bonus) * found
        attention = scores.masked_fill(~source.mask, _NONE).log_softmax(-1)
        return F.logsigmoid(gate), F.logsigmoid(-gate), attention


def in_front(tokens: Tensor, start: int) -> Tensor:
    """Return the last REACH tokens of each prefix of (B, T), nearest first: (B, T + 1, REACH).

    `start` stands where a prefix is shorter.
    """
    padded = F.pad(tokens, (REACH, 0), value=start)
    return padded.unfold(1, REACH, 1).flip(2)
