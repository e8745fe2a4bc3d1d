"""Beam search over all sentences of a batch at once.

The search keeps `beam` live prefixes for each sentence. A step scores every continuation of every live prefix and ranks
the best ``2 * beam`` of a sentence. Continuations among the first `beam` that end the sentence become finished
hypotheses, and the best `beam` that do not end it become the live prefixes. A finished hypothesis Y of log-probability
log p has the score ``log p / ((5 + |Y|) / 6) ** alpha`` (Wu et al. 2016, eq. 14). |Y| counts the end-of-sentence token.

A sentence ends if any of three conditions holds:

- `beam` hypotheses are finished. With a beam of 1 this is greedy search.
- No live prefix can still be among the `n_best`. Log-probabilities only fall, so a live prefix never scores better than
  its log-probability divided by the penalty of the longest output. This stop is exact: it changes no result.
- The longest output is reached. Every live prefix is then closed with an end-of-sentence token, so that every
  hypothesis is a complete sentence and its log-probability is the model's.

Padding, beginning-of-sentence, the unknown token and ids beyond the tokenizer are never produced. The softmax still
includes all ids of the model: scores are the model's log-probabilities, not renormalised.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from phmctl.answering.base import TORCH, Hypothesis, length_penalty, longest_outputs
from phmctl.data import BOS, EOS, PAD, UNK
from phmctl.errors import NonFiniteError
from phmctl.nn.layers import mean_pool
from phmctl.recipe.schema import DecodingSection

# On a CPU rows are processed in parts, so that the scores of each part reuse the same memory. Scores for all rows at
# once would need new memory in each step (15 % of a step at V = 8,000).
_ROWS_PER_PART = 128
_GROUP_SIZE = 8  # columns per group: of 4 to 64, 8 is fastest or close to it at 8,000 and 32,768 columns
_IMPOSSIBLE = float("-inf")
_STEPS_BETWEEN_CHECKS = {"cpu": 1, "cuda": 4}  # a check for ended sentences makes the host wait for the GPU


def best_continuations(logits: Tensor, count: int, allowed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the best next tokens of each row of logits (R, V).

    Returns the `count` largest log-probabilities (R, C) of tokens that may be produced, descending, their ids (R, C),
    and the log-probability of EOS (R,). C is `count`, or V if V is smaller.
    """
    parts = [logits] if logits.is_cuda else torch.split(logits, _ROWS_PER_PART)
    values, ids, ends = [], [], []
    for part in parts:
        scores = torch.log_softmax(part, -1, dtype=torch.float32)  # (R, V)
        ends.append(scores[:, EOS].clone())  # (R,)
        for token in (PAD, UNK, BOS):
            scores[:, token] = _IMPOSSIBLE
        scores[:, allowed:] = _IMPOSSIBLE
        part_values, part_ids = grouped_topk(scores, min(count, scores.shape[1]))
        values.append(part_values)
        ids.append(part_ids)
    return torch.cat(values), torch.cat(ids), torch.cat(ends)


def grouped_topk(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return the `count` largest values (R, C) of each row of (R, V) and their columns, like ``torch.topk``.

    On a CPU the columns are split into groups of eight. The `count` groups with the largest maxima contain the `count`
    largest values, so only the columns of these groups are ranked. The result is exact, and 1.8 (V = 8,000) to 2.5
    times (V = 32,768) as fast as ``torch.topk``. The choice among equal values is arbitrary.
    """
    groups = scores.shape[1] // _GROUP_SIZE
    if scores.is_cuda or groups <= count:
        return scores.topk(count)
    grouped = groups * _GROUP_SIZE
    maxima = scores[:, :grouped].reshape(-1, _GROUP_SIZE, groups).amax(1)  # (R, G): column c is in group c mod G
    best_groups = maxima.topk(count, sorted=False).indices  # (R, C)
    offsets = torch.arange(0, grouped, groups, device=scores.device)  # (8,)
    members = (best_groups[:, :, None] + offsets).flatten(1)  # (R, 8C)
    ungrouped = torch.arange(grouped, scores.shape[1], device=scores.device).expand(len(scores), -1)  # (R, V mod 8)
    members = torch.cat([members, ungrouped], 1)
    values, places = scores.gather(1, members).topk(count)  # (R, C)
    return values, members.gather(1, places)


class Seq2Seq(Protocol):
    """The model that beam search needs.

    The state between two steps has ``reorder(parents, sentences=None)``: beam k of the b-th remaining sentence
    continues the prefix of beam ``parents[b, k]``. `parents` is (B', K'), so the number of beams may change.
    `sentences` (B',) are the remaining sentences, or None if all remain.
    """

    def encode(self, source: Tensor) -> Any:
        """Encode the source (B, S)."""

    def start(self, memory: Any, beams: int, max_length: int) -> Any:
        """Return the state before the first token."""

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        """Append a token (B, K) to each prefix, and return the logits (B, K, V) of the next token."""


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
    """Return the `n_best` best hypotheses of each sentence, best first, or fewer if the search finds fewer.

    Args:
        source: token ids (B, S), each sentence closed by EOS and padded with PAD.
        beam: live prefixes of each sentence.
        alpha: exponent of the length penalty.
        max_lengths: length limit of each output (B,) in tokens, without EOS.
        allowed: size of the tokenizer. The further ids of a padded vocabulary are never produced.
        n_best: at most `beam`.

    Raises:
        NonFiniteError: the model's scores are NaN or infinite.
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
    """Live prefixes and finished hypotheses of the B sentences that have not ended."""

    def __init__(self, limits: Tensor, longest: int, beam: int, n_best: int, alpha: float, allowed: int) -> None:
        device = limits.device
        count = len(limits)
        self.beam = beam
        self.n_best = n_best
        self.alpha = alpha
        self.allowed = allowed
        self.longest = longest
        self.length = 0  # tokens of a live prefix
        self.results: list[list[Hypothesis]] = [[] for _ in range(count)]
        self.limits = limits  # (B,)
        self.rows = torch.arange(count, device=device)  # (B,) index of each sentence in `results`
        # The search starts with one empty prefix: K is 1 before the first step, and `beam` after it.
        self.last = torch.full((count, 1), BOS, device=device)  # (B, K) newest token of each live prefix
        # Tokens and parents of each step, for all sentences: a finished prefix is read from the end to the beginning.
        self.tokens = torch.zeros((longest + 1, count, beam), dtype=torch.long, device=device)
        self.parents = torch.zeros_like(self.tokens)
        # (B, K) log-probability of each live prefix, and the scores of the finished ones, best first
        self.live = torch.zeros((count, 1), dtype=torch.float32, device=device)
        self.scores = torch.full((count, beam), _IMPOSSIBLE, dtype=torch.float32, device=device)
        self.finished = torch.zeros_like(self.tokens[0])  # (B, K) end of each: length · beam + live prefix
        self.finished_count = torch.zeros(count, dtype=torch.long, device=device)  # (B,)
        self.ended = torch.zeros(count, dtype=torch.bool, device=device)  # (B,)

    def advance(self, logits: Tensor) -> Tensor:
        """Append a token to each live prefix, from logits (B, K, V). Return the parents (B, K) of the new prefixes."""
        sentences, prefixes, vocabulary = logits.shape
        values, ids, end = best_continuations(logits.view(-1, vocabulary), 2 * self.beam, self.allowed)
        width = values.shape[1]  # C
        totals = (values.view(sentences, prefixes, width) + self.live[:, :, None]).flatten(1)  # (B, K·C)
        totals, places = _padded(totals, 2 * self.beam).topk(2 * self.beam)  # (B, 2·beam)
        places = places.clamp(max=prefixes * width - 1)  # a padded candidate is impossible: any place will do
        parents = places // width  # (B, 2·beam)
        tokens = ids.view(sentences, -1).gather(1, places)  # (B, 2·beam)
        closing = _padded(end.view(sentences, prefixes) + self.live, self.beam)  # (B, beam) each live prefix with EOS
        self._finish(parents[:, : self.beam], tokens[:, : self.beam], totals[:, : self.beam], closing)
        alive = totals.masked_fill(tokens == EOS, _IMPOSSIBLE)  # (B, 2·beam)
        self.live, best = alive.topk(self.beam)  # (B, K)
        parents = parents.gather(1, best)
        self.last = tokens.gather(1, best)
        self.tokens[self.length][self.rows] = self.last
        self.parents[self.length][self.rows] = parents
        self.length += 1
        largest_penalty = length_penalty((self.limits + 1).float(), self.alpha)  # (B,) of the longest output
        reachable = self.live[:, 0] / largest_penalty  # (B,) upper bound of the score of a live prefix
        self.ended |= self.scores[:, self.n_best - 1] >= reachable
        self.ended |= (self.finished_count >= self.beam) | (self.limits < self.length)
        return parents

    def _finish(self, parents: Tensor, tokens: Tensor, totals: Tensor, closing: Tensor) -> None:
        """Add the hypotheses that end at this step to the finished hypotheses. All arguments are (B, beam)."""
        at_limit = (self.limits == self.length)[:, None]  # (B, 1) at the longest output every prefix is closed
        prefixes = torch.arange(self.beam, device=parents.device).clamp(max=self.live.shape[1] - 1)
        parents = torch.where(at_limit, prefixes, parents)
        totals = torch.where(at_limit, closing, totals.masked_fill(tokens != EOS, _IMPOSSIBLE))
        totals = totals.masked_fill(self.ended[:, None], _IMPOSSIBLE)
        self.finished_count += (totals > _IMPOSSIBLE).sum(1)
        scores = totals / length_penalty(self.length + 1, self.alpha)
        self.scores, best = torch.cat([self.scores, scores], 1).topk(self.beam)  # (B, beam) of 2·beam
        ending = self.length * self.beam + parents  # (B, beam)
        self.finished = torch.cat([self.finished, ending], 1).gather(1, best)

    def retire(self) -> Tensor | None:
        """Move ended sentences to the results. Return the places (B',) of the others, or None if all remain."""
        last_step = self.length > self.longest
        if self.length % _STEPS_BETWEEN_CHECKS.get(self.ended.device.type, 1) and not last_step:
            return None
        keep = (~self.ended).nonzero()[:, 0]  # (B',)
        if len(keep) == len(self.rows):
            return None
        self._write(self.ended.nonzero()[:, 0])
        for name in ("limits", "rows", "last", "live", "scores", "finished", "finished_count", "ended"):
            setattr(self, name, getattr(self, name)[keep])
        return keep

    def _write(self, places: Tensor) -> None:
        """Append the finished hypotheses of the sentences at `places` to the results."""
        rows = self.rows[places]
        scores = self.scores[places, : self.n_best].double().tolist()
        ends = self.finished[places, : self.n_best].tolist()
        tokens = self.tokens[: self.length, rows].transpose(0, 1).tolist()  # [place][step][beam]
        parents = self.parents[: self.length, rows].transpose(0, 1).tolist()
        for place, row in enumerate(rows.tolist()):
            for end, score in zip(ends[place], scores[place], strict=True):
                if score > _IMPOSSIBLE:
                    length, beam = divmod(end, self.beam)
                    log_prob = score * float(length_penalty(length + 1, self.alpha))
                    prefix = _prefix(tokens[place], parents[place], length, beam)
                    self.results[row].append(Hypothesis(prefix, score, log_prob))
            if not self.results[row]:
                raise NonFiniteError("the model gives NaN or infinite scores; was its training stable?")


def _prefix(tokens: list[list[int]], parents: list[list[int]], length: int, beam: int) -> list[int]:
    """Return the prefix that has `length` tokens and ends at `beam`, from the tokens and parents of each step."""
    prefix = []
    for step in reversed(range(length)):
        prefix.append(tokens[step][beam])
        beam = parents[step][beam]
    return prefix[::-1]


def _padded(values: Tensor, width: int) -> Tensor:
    """Return values (B, C) with at least `width` columns. The added candidates are impossible."""
    return torch.nn.functional.pad(values, (0, max(0, width - values.shape[1])), value=_IMPOSSIBLE)


class BeamEngine:
    """Beam search of a :class:`Seq2Seq` model on `device`, in evaluation mode.

    `name` is the library that computes the model. With torch's the engine also scores outputs and encodes sources.
    """

    def __init__(self, model: Any, device: torch.device, name: str = TORCH) -> None:
        self.model = model
        self.device = device
        self.name = name

    def search(
        self, sources: Sequence[Sequence[int]], settings: DecodingSection, *, allowed: int, n_best: int = 1
    ) -> list[list[Hypothesis]]:
        """Return at most `n_best` hypotheses for each source, best first.

        Args:
            sources: token ids, each closed by EOS.
            allowed: size of the target tokenizer. Larger ids are never produced.
            n_best: at most the beam size.
        """
        return beam_search(
            self.model,
            pad(sources).to(self.device),
            beam=settings.beam,
            alpha=settings.alpha,
            max_lengths=longest_outputs(sources, settings),
            allowed=allowed,
            n_best=n_best,
        )

    def score(self, sources: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> list[float]:
        """Return the log-probability of each output as the translation of its source."""
        return forced_scores(self.model, pad(sources).to(self.device), outputs)

    @torch.no_grad()
    def encode(self, sources: Sequence[Sequence[int]], batches: Sequence[Sequence[int]]) -> Tensor:
        """Return the mean of the encoder's states for each source, (N, d) float32 on the CPU.

        `batches` contains the rows of each batch. The vector of a source in no batch is zero.
        """
        vectors = torch.zeros(len(sources), self.model.target_embedding.embedding_dim, dtype=torch.float32)  # (N, d)
        for rows in batches:
            memory = self.model.encode(pad([sources[row] for row in rows]).to(self.device))
            vectors[rows] = mean_pool(memory.states, memory.mask[:, 0, 0]).float().cpu()  # (B, d)
        return vectors


def pad(rows: Sequence[Sequence[int]]) -> Tensor:
    """Return a tensor (B, S) of rows of token ids. Shorter rows are padded with PAD."""
    return pad_sequence([torch.tensor(row) for row in rows], batch_first=True, padding_value=PAD)


@torch.no_grad()
def forced_scores(model: Any, source: Tensor, outputs: Sequence[Sequence[int]]) -> list[float]:
    """Return the log-probability of each output as the translation of its source (B, S), in one forward pass."""
    target = pad([[BOS, *tokens, EOS] for tokens in outputs]).to(source.device)  # (B, T+1)
    log_probs = torch.log_softmax(model.logits(model(source, target[:, :-1])).float(), -1)  # (B, T, V)
    gold = log_probs.gather(2, target[:, 1:, None])[:, :, 0]  # (B, T)
    return gold.masked_fill(target[:, 1:] == PAD, 0.0).double().sum(1).tolist()
