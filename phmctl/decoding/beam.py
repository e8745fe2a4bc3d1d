"""Beam search over all sentences of a batch at once.

The search keeps `beam` live prefixes a sentence. A step scores every continuation of every live prefix and ranks the
best ``2 * beam`` of a sentence. Those among the first `beam` that end the sentence join its finished hypotheses; the
best `beam` that do not end it live on. A finished hypothesis Y of log-probability log p has the score of Wu et al.
(2016), eq. 14, ``log p / ((5 + |Y|) / 6) ** alpha``; |Y| counts the end-of-sentence token.

A sentence ends when one of three things is true:

- `beam` hypotheses are finished. With a beam of 1 this is greedy search.
- No live prefix can reach the hypotheses asked for. Log-probabilities only fall, so a live prefix never scores better
  than its log-probability over the penalty of the longest output. This stop is exact: it changes no result.
- The longest output is reached. Every live prefix is then closed with an end-of-sentence token, so that every
  hypothesis is a whole sentence and its log-probability is the model's own.

Padding, beginning-of-sentence, the unknown token and ids beyond the tokenizer are never produced. The softmax runs over
all of the model's ids none the less: scores are the model's, not renormalised.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from phmctl.data.special import BOS, EOS, PAD, UNK
from phmctl.decoding.search import TORCH, Hypothesis, length_penalty, longest_outputs
from phmctl.errors import NonFiniteError
from phmctl.nn.layers import mean_pool
from phmctl.recipe.schema import DecodingSection

# A CPU takes the rows in parts: the parts' scores use the same memory again, where a second tensor as large as the
# logits would be fresh memory in each step (15 % of a step at V = 8,000).
_ROWS = 128
_MEMBERS = 8  # columns a group; of 4 to 64, 8 is quickest or near it at 8,000 and 32,768 columns


def log_softmax_topk(
    logits: Tensor, count: int, *, forbidden: Sequence[int], allowed: int, column: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return each row's best log-probabilities (R, C) of logits (R, V), descending, their ids, and a column's (R,).

    Ids that are `forbidden`, and those from `allowed` on, are never chosen, but keep their share of the softmax.
    `column` is an id whose log-probability is wanted in any case. C is `count`, less where V is smaller.
    """
    found = []
    for part in [logits] if logits.is_cuda else torch.split(logits, _ROWS):
        scores = torch.log_softmax(part, -1, dtype=torch.float32)  # (R, V)
        wanted = scores[:, column].clone()  # (R,)
        for identity in forbidden:
            scores[:, identity] = float("-inf")
        scores[:, allowed:] = float("-inf")
        found.append((*grouped_topk(scores, min(count, scores.shape[1])), wanted))
    values, ids, ends = zip(*found, strict=True)
    return torch.cat(values), torch.cat(ids), torch.cat(ends)


def grouped_topk(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values (R, C) of each row of (R, V) and their columns, like ``torch.topk``.

    On a CPU the columns are first put in groups of eight. The best `count` groups by their maximum hold the best
    `count` columns, so that only their members are ranked. This is exact, and 1.8 times (V = 8,000) to 2.5 times
    (V = 32,768) as fast as ``torch.topk``. Of equal values any may be chosen.
    """
    groups = scores.shape[1] // _MEMBERS
    if scores.is_cuda or groups <= count:
        return scores.topk(count)
    whole = groups * _MEMBERS
    maxima = scores[:, :whole].reshape(-1, _MEMBERS, groups).amax(1)  # (R, G): column c is in group c mod G
    best = maxima.topk(count, sorted=False).indices  # (R, C)
    offsets = torch.arange(0, whole, groups, device=scores.device)  # (8,)
    members = (best[:, :, None] + offsets).flatten(1)  # (R, 8C)
    rest = torch.arange(whole, scores.shape[1], device=scores.device).expand(len(scores), -1)  # (R, V mod 8)
    members = torch.cat([members, rest], 1)
    values, places = scores.gather(1, members).topk(count)  # (R, C)
    return values, members.gather(1, places)


_DEAD = float("-inf")
_LOOK_EVERY = {"cpu": 1, "cuda": 4}  # steps between looks at what has ended; a look makes the host wait for a GPU


class Seq2Seq(Protocol):
    """What beam search wants of a model.

    The state, what the model remembers between two steps, has ``reorder(parents, sentences=None)``: beam k of the b-th
    sentence that stays continues the prefix of its beam ``parents[b, k]``. `parents` is (B', K'), so that the number of
    beams may change; `sentences` (B',) names those that stay, None all.
    """

    def encode(self, source: Tensor) -> Any:
        """Read the source (B, S) once."""

    def start(self, memory: Any, beams: int, max_length: int) -> Any:
        """Return the state before the first token."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Return the logits (B, K, V) behind one more token (B, K) of each prefix."""


@torch.no_grad()
def beam_search(
    model: Seq2Seq,
    source: Tensor,
    *,
    beam: int,
    alpha: float,
    max_lengths: Tensor | Sequence[int],
    allowed: int,
    n_best: int = 1,
) -> list[list[Hypothesis]]:
    """Return the `n_best` best hypotheses of each sentence, best first; fewer where there are not so many outputs.

    `source` (B, S) has token ids, each sentence closed by EOS, then PAD; `max_lengths` (B,) are the longest outputs in
    tokens, EOS not counted; ids from `allowed` on are never produced (a padded vocabulary is larger than the
    tokenizer's). `n_best` is at most `beam`. NonFiniteError: the model gives NaN.
    """
    limits = torch.as_tensor(max_lengths, device=source.device)  # (B,)
    longest = int(limits.max())
    state = model.start(model.encode(source), 1, longest + 1)
    search = _Search(limits, longest, beam, n_best, alpha, allowed)
    while len(search.rows):
        parents = search.advance(model.step(search.last, state))  # (B, K)
        keep = search.retire()
        if keep is not None:
            state.reorder(parents[keep], keep)
        elif beam > 1:
            state.reorder(parents)
    return search.results


class _Search:
    """The live prefixes and the finished hypotheses of the sentences that have not ended. B shrinks as they end."""

    def __init__(self, limits: Tensor, longest: int, beam: int, n_best: int, alpha: float, allowed: int) -> None:
        count, device = len(limits), limits.device
        self.beam, self.n_best, self.alpha, self.allowed = beam, n_best, alpha, allowed
        self.results: list[list[Hypothesis]] = [[] for _ in range(count)]
        self.longest, self.length = longest, 0
        self.limits = limits  # (B,)
        self.rows = torch.arange(count, device=device)  # (B,) places in `results`
        # One empty prefix lives at first; K below is 1 until the first step makes it `beam`.
        self.last = torch.full((count, 1), BOS, device=device)  # (B, K) newest token of each live prefix
        self.live = torch.zeros((count, 1), device=device)  # (B, K) log-probability
        # What each step added, for all sentences of the batch: a prefix is read backwards from where it ended, once.
        self.tokens = torch.zeros((longest + 1, count, beam), dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.tokens)
        self.scores = torch.full((count, beam), _DEAD, device=device)  # (B, K) finished, best first
        self.finished = torch.zeros_like(self.tokens[0])  # (B, K) where each ended: length · beam + its live prefix
        self.finished_count = torch.zeros(count, dtype=torch.long, device=device)  # (B,)
        self.ended = torch.zeros(count, dtype=torch.bool, device=device)  # (B,)

    def advance(self, logits: Tensor) -> Tensor:
        """Add a token to every live prefix; logits (B, K, V). Return the parents (B, K) of the new live prefixes."""
        count, live, size = logits.shape
        values, ids, end = log_softmax_topk(
            logits.view(-1, size), 2 * self.beam, forbidden=(PAD, UNK, BOS), allowed=self.allowed, column=EOS
        )  # (B·K, C), (B·K, C), (B·K,)
        width = values.shape[1]
        totals = (values.view(count, live, width) + self.live[:, :, None]).flatten(1)  # (B, K·C)
        totals, places = _at_least(totals, 2 * self.beam).topk(2 * self.beam)  # (B, 2·beam)
        places = places.clamp(max=live * width - 1)
        parents, tokens = places // width, ids.view(count, -1).gather(1, places)
        closing = _at_least(end.view(count, live) + self.live, self.beam)  # (B, beam) of ending each live prefix
        self._finish(parents[:, : self.beam], tokens[:, : self.beam], totals[:, : self.beam], closing)
        alive = totals.masked_fill(tokens == EOS, _DEAD)  # (B, 2K)
        self.live, best = alive.topk(self.beam)  # (B, K)
        parents = parents.gather(1, best)
        self.last = tokens.gather(1, best)
        self.tokens[self.length][self.rows] = self.last
        self.parents[self.length][self.rows] = parents
        self.length += 1
        longest = length_penalty(self.limits + 1, self.alpha)  # (B,)
        reachable = self.live[:, 0] / longest  # (B,) the best that a live prefix can still score
        self.ended |= self.scores[:, self.n_best - 1] >= reachable  # then the sentence's results are final
        self.ended |= (self.finished_count >= self.beam) | (self.limits < self.length)
        return parents

    def _finish(self, parents: Tensor, tokens: Tensor, totals: Tensor, closing: Tensor) -> None:
        """Add the hypotheses that end at this step to the finished ones. All (B, beam)."""
        must = (self.limits == self.length)[:, None]  # (B, 1) at the longest output every prefix is closed
        own = torch.arange(self.beam, device=parents.device).clamp(max=self.live.shape[1] - 1)
        parents = torch.where(must, own, parents)
        totals = torch.where(must, closing, totals.masked_fill(tokens != EOS, _DEAD))
        totals = totals.masked_fill(self.ended[:, None], _DEAD)
        self.finished_count += (totals > _DEAD).sum(1)
        scores = totals / length_penalty(self.length + 1, self.alpha)
        self.scores, best = torch.cat([self.scores, scores], 1).topk(self.beam)  # (B, beam) of 2·beam
        ending = self.length * self.beam + parents  # (B, beam)
        self.finished = torch.cat([self.finished, ending], 1).gather(1, best)

    def retire(self) -> Tensor | None:
        """Write out ended sentences and drop them. Return the places (B',) that stay, or None when all do."""
        last_step = self.length > self.longest
        if self.length % _LOOK_EVERY.get(self.ended.device.type, 1) and not last_step:
            return None
        keep = (~self.ended).nonzero()[:, 0]  # (B',)
        if len(keep) == len(self.rows):
            return None
        self._write(self.ended.nonzero()[:, 0])
        for name in ("limits", "rows", "last", "live", "scores", "finished", "finished_count", "ended"):
            setattr(self, name, getattr(self, name)[keep])
        return keep

    def _write(self, places: Tensor) -> None:
        """Turn the finished hypotheses of the sentences at `places` into Python values."""
        rows = self.rows[places]
        scores = self.scores[places, : self.n_best].double().tolist()
        ends = self.finished[places, : self.n_best].tolist()
        tokens, parents = (each[: self.length, rows].transpose(0, 1).tolist() for each in (self.tokens, self.parents))
        for place, row in enumerate(rows.tolist()):
            for end, score in zip(ends[place], scores[place], strict=True):
                if score > _DEAD:
                    length, beam = divmod(end, self.beam)
                    found: list[int] = []  # the prefix, backwards from where it ended
                    for step in reversed(range(length)):
                        found.append(tokens[place][step][beam])
                        beam = parents[place][step][beam]
                    log_prob = score * float(length_penalty(length + 1, self.alpha))
                    self.results[row].append(Hypothesis(found[::-1], score, log_prob))
            if not self.results[row]:
                raise NonFiniteError("the model gives NaN or infinite scores; was its training stable?")


def _at_least(values: Tensor, width: int) -> Tensor:
    """Pad (B, C) with impossible candidates to at least `width` columns."""
    return torch.nn.functional.pad(values, (0, max(0, width - values.shape[1])), value=_DEAD)


class BeamEngine:
    """Beam search of a :class:`Seq2Seq` model on `device`, in evaluation mode."""

    name = TORCH

    def __init__(self, model: Any, device: torch.device) -> None:
        self.model = model
        self.device = device

    def search(
        self, sources: Sequence[Sequence[int]], settings: DecodingSection, *, allowed: int, n_best: int = 1
    ) -> list[list[Hypothesis]]:
        """Search one batch; see :class:`~phmctl.decoding.search.Engine`."""
        return beam_search(
            self.model,
            pad(sources).to(self.device),
            beam=settings.beam,
            alpha=settings.alpha,
            max_lengths=longest_outputs(sources, settings),
            allowed=allowed,
            n_best=n_best,
        )


class TorchEngine(BeamEngine):
    """The engine of a :class:`phmctl.models.transformer.Transformer`."""

    def score(self, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> list[float]:
        """Score one batch; see :class:`~phmctl.decoding.search.ScoringEngine`."""
        return forced_scores(self.model, pad(sources).to(self.device), outputs)

    @torch.no_grad()
    def encode(self, sources: Sequence[Sequence[int]], batches: Sequence[Sequence[int]]) -> Tensor:
        """Encode sources in batches; see :class:`~phmctl.decoding.search.ScoringEngine`."""
        vectors = torch.zeros(len(sources), self.model.target_embedding.embedding_dim)  # (N, d)
        for rows in batches:
            memory = self.model.encode(pad([sources[row] for row in rows]).to(self.device))
            vectors[rows] = mean_pool(memory.states, memory.mask[:, 0, 0]).float().cpu()  # (B, d)
        return vectors


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return rows of ids as one tensor (B, S), shorter rows filled with PAD."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


@torch.no_grad()
def forced_scores(model: Any, source: Tensor, outputs: Sequence[Sequence[int]]) -> list[float]:
    """Return the log-probability of an output for each source sentence (B, S), in one pass without a cache."""
    framed = [torch.tensor([BOS, *tokens, EOS]) for tokens in outputs]
    target = pad_sequence(framed, batch_first=True, padding_value=PAD).to(source.device)  # (B, T+1)
    log_probs = torch.log_softmax(model.logits(model(source, target[:, :-1])).float(), -1)  # (B, T, V)
    gold = log_probs.gather(2, target[:, 1:, None])[:, :, 0]  # (B, T)
    return gold.masked_fill(target[:, 1:] == PAD, 0.0).double().sum(1).tolist()
