"""``bench decode``: beam search of a recipe's model against its dense twin, against no cache, and against sgemm.

The models are untrained, so each sentence is searched to the length of its reference: ending earlier is forbidden.
What is timed is the search over padded batches of token ids, as :class:`phmctl.decoding.translator.Translator` does
it; reading, tokenising and printing are not.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phmctl.accounting.multiplications import multiplications
from phmctl.assembly import build_transformer
from phmctl.backends.choices import taken_from
from phmctl.benchmarks.timing import Spread, Timing, compare, watched
from phmctl.benchmarks.training import variants_of
from phmctl.benchmarks.uncached import Uncached
from phmctl.console import Table
from phmctl.data.prepared.folder import PreparedData
from phmctl.data.special import EOS
from phmctl.decoding.beam import Seq2Seq, beam_search
from phmctl.decoding.hypothesis import Hypothesis
from phmctl.decoding.torch_engine import pad
from phmctl.decoding.translator import plan
from phmctl.devices import pick_device, set_threads
from phmctl.errors import check_known
from phmctl.models.transformer import Transformer
from phmctl.nn.caching import cached
from phmctl.nn.kept_factors import set_execution
from phmctl.recipe.schema import TransformerSection, TranslationRecipe

LENGTHS = (8, 16, 32, 64, 128)  # output lengths at which a step is timed

_SGEMM = "sgemm"  # a candidate's name
_WHOLE = {"forward": True, "decoder": False}  # what an uncached step runs anew
_SIDE, _PRODUCTS = 1024, 20  # of the square matrices that give the machine's sgemm rate; how many products a sample
_COUNTED = 32  # sentences whose multiplications are counted
_NEVER = -1e4  # added to the logit of EOS


@dataclass(frozen=True)
class Workload:
    """Sentences to search.

    Attributes:
        sources: token ids, each closed by EOS.
        lengths: tokens of each output, EOS not counted.
    """

    sources: Sequence[Sequence[int]]
    lengths: Sequence[int]

    def take(self, count: int) -> "Workload":
        """Return `count` sentences that stand evenly apart, or all if there are not so many."""
        total = len(self.sources)
        rows = [row * total // count for row in range(count)] if count < total else range(total)
        return Workload([self.sources[row] for row in rows], [self.lengths[row] for row in rows])

    @property
    def tokens(self) -> int:
        """Output tokens, EOS counted."""
        return sum(self.lengths) + len(self.lengths)


@dataclass(frozen=True)
class Alone:
    """The search of one sentence at a time, each step over the whole prefix anew.

    Attributes:
        seconds: measured, for the part of the workload that was searched so.
        sentences_per_second: of the whole workload, extrapolated by output tokens.
        speedup: how many times as fast the batched search with its cache is.
    """

    seconds: Spread
    sentences_per_second: float
    speedup: float


@dataclass(frozen=True)
class DecodingRow:
    """One model's speed.

    Attributes:
        candidate: the recipe's variant, or ``dense``.
        seconds: for the whole workload.
        sentences_per_second: at the median.
        speed: relative to the baseline's, within a round.
        allowed: the speed that multiplications alone would give, relative to the baseline's.
        sgemm_share: decoder weights × beams × output tokens × 2 a second, over the machine's sgemm rate, at the
            medians. Weights are counted as dense matrices, however the layer computes; the encoder is not counted.
        uncached: by what a step runs anew. ``forward``: the decoder and the vocabulary at every position, as a call of
            the model does; ``decoder``: the vocabulary at the last position only.
    """

    candidate: str
    seconds: Spread
    sentences_per_second: float
    speed: Spread
    allowed: float
    sgemm_share: float
    uncached: Mapping[str, Alone]


@dataclass(frozen=True)
class DecodingBench:
    """What ``bench decode`` measured.

    Attributes:
        output_tokens: of the workload, EOS counted.
        sgemm_rate: operations a second (a multiply-add is two), of square float32 matrices of 1,024 rows.
        uncached_sentences, uncached_tokens: the part of the workload that was searched without cache and batching.
        step_seconds: the mean time of a step of one batch that is searched to so many tokens.
    """

    recipe: str
    device: str
    threads: int
    sentences: int
    output_tokens: int
    beam: int
    batch_tokens: int
    sgemm_rate: float
    baseline: str
    uncached_sentences: int
    uncached_tokens: int
    rows: Sequence[DecodingRow]
    step_seconds: Mapping[int, Spread]

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers."""
        return asdict(self)

    def tables(self) -> list[Table]:
        """Return the tables of ``bench decode``: the models, and a step at growing lengths."""
        models = Table(
            f"{self.recipe}: {self.sentences} sentences, beam {self.beam}, {self.device}, "
            f"{self.threads} threads; sgemm {self.sgemm_rate / 1e9:.0f} GFLOP/s",
            (
                *("model", "seconds", "sentences/s", f"speed / {self.baseline}", "products allow", "of sgemm"),
                *(f"over {kind} anew" for kind in self.rows[0].uncached),
            ),
            [
                (
                    r.candidate,
                    f"{r.seconds.median:.2f}",
                    f"{r.sentences_per_second:.0f}",
                    r.speed,
                    f"{r.allowed:.2f}",
                    f"{r.sgemm_share:.0%}",
                    *(f"{alone.speedup:.1f}×" for alone in r.uncached.values()),
                )
                for r in self.rows
            ],
        )
        steps = [(length, seconds.milliseconds) for length, seconds in self.step_seconds.items()]
        return [models, Table("a step at growing output lengths", ("length", "ms a step"), steps)]


def bench_decoding(
    recipe: TranslationRecipe,
    data: Path,
    *,
    split: str = "test",
    sentences: int = 1000,
    uncached: int = 40,
    rounds: int = 5,
    lengths: Sequence[int] = LENGTHS,
    baseline: str = "dense",
) -> DecodingBench:
    """Measure beam search on a split of a recipe's prepared data.

    Args:
        recipe: the experiment; its dense twin is the same with ``algebra: real``.
        data: the data folder.
        split: whose sources are searched, to the lengths of their references.
        sentences: how many, evenly chosen.
        uncached: how many of them are searched without cache and batching too; 0 leaves that out.
        rounds: samples of each candidate.
        lengths: output lengths at which a step is timed.
        baseline: ``dense``; of a composed model also ``base``, its dense twin without compositions.

    Raises:
        DataError: the data is not prepared, or has no such split.
        UserError: there is no such candidate.
    """
    prepared = PreparedData.find(recipe.data, data)
    rows = prepared.split(split)
    work = Workload(
        [[*map(int, rows.source[row]), EOS] for row in range(len(rows))],
        [len(rows.target[row]) for row in range(len(rows))],
    )
    sizes = (prepared.tokenizers.source.size, prepared.tokenizers.target.size)
    return measure(
        recipe, work.take(sentences), sizes, uncached=uncached, rounds=rounds, lengths=lengths, baseline=baseline
    )


def measure(
    recipe: TranslationRecipe,
    work: Workload,
    vocabularies: tuple[int, int],
    *,
    uncached: int,
    rounds: int,
    lengths: Sequence[int] = LENGTHS,
    baseline: str = "dense",
) -> DecodingBench:
    """Measure a recipe's untrained model, for tokenizers of these sizes, on a workload; see :func:`bench_decoding`."""
    device = pick_device(recipe.training.device)
    set_threads(recipe.training.threads)
    recipes = variants_of(recipe)
    check_known("candidate", baseline, list(recipes))
    models = {name: _model(each, vocabularies, device) for name, each in recipes.items()}
    few = work.take(uncached)
    candidates: dict[str, Callable[[], object]] = {}
    for name, model in models.items():
        candidates[name] = searcher(model, work, recipe, vocabularies[1])
        for kind, whole in _WHOLE.items() if uncached else ():
            alone = Uncached(model, whole=whole)
            candidates[_alone(name, kind)] = searcher(alone, few, recipe, vocabularies[1], one_by_one=True)
    candidates[_SGEMM] = _sgemm(device)
    with taken_from({}), cached(), watched("searches", len(candidates), rounds) as advance:  # as a translator searches
        timings = compare(candidates, rounds=rounds, baseline=baseline, warmup=1, device=device, advance=advance)
    sample = work.take(_COUNTED)
    products = {name: multiplications(searcher(each, sample, recipe, vocabularies[1])) for name, each in models.items()}
    return DecodingBench(
        recipe=recipe.name,
        device=str(device),
        threads=torch.get_num_threads(),
        sentences=len(work.sources),
        output_tokens=work.tokens,
        beam=recipe.decoding.beam,
        batch_tokens=recipe.decoding.batch_tokens,
        sgemm_rate=_sgemm_rate(timings),
        uncached_sentences=len(few.sources),
        uncached_tokens=few.tokens,
        baseline=baseline,
        rows=[
            _row(name, model, recipes[name], work, few, timings, products[baseline] / products[name])
            for name, model in models.items()
        ],
        step_seconds=_step_seconds(models["dense"], work, recipe, vocabularies[1], lengths),
    )


def applied_weights(settings: TransformerSection, vocabulary: int) -> int:
    """Return how many weights a decoding step applies to each prefix: the decoder's and the generator's, as dense maps.

    The keys and values of the memory are computed once a sentence and not counted.
    """
    decoder = build_transformer(settings.dense_twin, 1, 1, device="meta").decoder
    memory = 2 * settings.decoder_layers * settings.width * settings.upsize * settings.width
    matrices = sum(parameter.numel() for parameter in decoder.parameters() if parameter.ndim == 2)
    return matrices - memory + vocabulary * settings.width


def _model(recipe: TranslationRecipe, sizes: tuple[int, int], device: torch.device) -> Transformer:
    model = build_transformer(recipe.model, *sizes, device).eval()
    if recipe.model.algebra != "real":
        set_execution(model, recipe.decoding.execution)
    return model


class _Endless:
    """A model that ends no sentence before its longest output."""

    def __init__(self, model: Seq2Seq) -> None:
        self._model = model
        self.encode, self.start = model.encode, model.start

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        logits = self._model.step(tokens, state)  # (B, K, V)
        logits[..., EOS] += _NEVER
        return logits


def searcher(
    model: Seq2Seq, work: Workload, recipe: TranslationRecipe, allowed: int, *, one_by_one: bool = False
) -> Callable[[], list[list[Hypothesis]]]:
    """Return a function that searches a workload, batched as the recipe says or one sentence at a time."""
    decoding, device, endless = recipe.decoding, pick_device(recipe.training.device), _Endless(model)
    budget = 1 if one_by_one else decoding.batch_tokens
    batches = [
        (pad([work.sources[row] for row in rows]), [work.lengths[row] for row in rows])
        for rows in plan([len(source) for source in work.sources], budget)
    ]

    def search() -> list[list[Hypothesis]]:
        found = []
        for source, lengths in batches:
            found += beam_search(
                endless,
                source.to(device),
                beam=decoding.beam,
                alpha=decoding.alpha,
                max_lengths=lengths,
                allowed=allowed,
            )
        return found

    return search


def _sgemm(device: torch.device) -> Callable[[], None]:
    """Return a function that multiplies square float32 matrices into one that is there already."""
    left, right, out = (torch.rand(_SIDE, _SIDE, device=device) for _ in range(3))

    def products() -> None:
        for _ in range(_PRODUCTS):
            torch.mm(left, right, out=out)

    return products


def _sgemm_rate(timings: Mapping[str, Timing]) -> float:
    return 2 * _SIDE**3 * _PRODUCTS / timings[_SGEMM].seconds.median


def _row(
    name: str,
    model: Transformer,
    recipe: TranslationRecipe,
    work: Workload,
    few: Workload,
    timings: Mapping[str, Timing],
    allowed: float,
) -> DecodingRow:
    seconds, ratio = timings[name].seconds, timings[name].ratio
    weights = applied_weights(recipe.model, len(model.target_embedding.weight))
    operations = 2 * weights * recipe.decoding.beam * work.tokens
    uncached = {}
    for kind in _WHOLE if few.sources else ():
        alone = timings[_alone(name, kind)].seconds
        extrapolated = alone.median * work.tokens / few.tokens
        uncached[kind] = Alone(alone, len(work.sources) / extrapolated, extrapolated / seconds.median)
    return DecodingRow(
        candidate=name,
        seconds=seconds,
        sentences_per_second=len(work.sources) / seconds.median,
        speed=ratio.inverse,
        allowed=allowed,
        sgemm_share=operations / seconds.median / _sgemm_rate(timings),
        uncached=uncached,
    )


def _alone(name: str, kind: str) -> str:
    return f"{name}, {kind} anew"


def _step_seconds(
    model: Transformer,
    work: Workload,
    recipe: TranslationRecipe,
    allowed: int,
    lengths: Sequence[int],
    sentences: int = 32,
) -> dict[int, Spread]:
    """Time one batch of sentences of middling length, searched to each output length."""
    ranked = sorted(work.sources, key=len)
    middle = ranked[max(0, len(ranked) // 2 - sentences // 2) :][:sentences]
    searches = {str(n): searcher(model, Workload(middle, [n] * len(middle)), recipe, allowed) for n in lengths}
    if not searches:
        return {}
    rounds, device = 3, pick_device(recipe.training.device)
    with watched("steps", len(searches), rounds) as advance:
        timings = compare(searches, rounds=rounds, warmup=1, device=device, advance=advance)
    return {
        length: Spread(*(value / (length + 1) for value in (spread.median, spread.lower, spread.upper)))
        for length in lengths
        for spread in [timings[str(length)].seconds]
    }
