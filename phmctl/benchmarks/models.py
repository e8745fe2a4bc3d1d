"""``bench train``, ``decode`` and ``rates``: a recipe's model beside its dense twin and the task's other models.

A training step is what the trainer does for one: the batch's loss, the backward pass, the gradient norm, the update.
All see the same batches. Decoding is beam search over padded batches of token ids; reading, tokenising and printing are
not timed. The models are untrained, so each sentence is searched to the length of its reference: ending earlier is
forbidden. Ratios are of speeds, taken in turns: above 1 is faster than the baseline.

For ``rates`` a step is Adam's first: each number moves by its rate, against the sign of its gradient. The gradient is
that of one batch at the start; the change of the output is compared with that by a step of the dense twin's weight.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.assembly import build_transformer
from phmctl.benchmarks.ratios import Bench, Spread, Timing, compare, machine, parameters_of
from phmctl.console import Table, silence
from phmctl.data.batches import lengths_of, real_token_share
from phmctl.data.copies import read_text
from phmctl.data.prepared.folder import PreparedData, data_root
from phmctl.data.special import EOS, PAD
from phmctl.decoding.beam import Seq2Seq, beam_search, pad
from phmctl.decoding.translator import Hypothesis, Translation, Translator, load_translator, plan
from phmctl.devices import isolated, pick_device, set_threads
from phmctl.errors import UserError, check_known
from phmctl.export import with_engine
from phmctl.exports import CTRANSLATE2
from phmctl.metrics.text import bleu
from phmctl.nn.convert import to_dense
from phmctl.nn.embedding import NarrowEmbedding, PHMEmbedding
from phmctl.nn.linear import KroneckerWeight, TwoFactorLinear
from phmctl.nn.tuning import dense_rate
from phmctl.recipe.models import StackSection, TransformerSection
from phmctl.recipe.schema import Recipe, TranslationRecipe
from phmctl.runs import AUTO, Run
from phmctl.tasks.registry import kind_of
from phmctl.training.optimiser import build_rates, fastest_executions, mean_loss, stepper

R = TypeVar("R", bound=Recipe)
_NEVER = -1e4  # added to the logit of EOS
_TOKENS = 512  # inputs of a map that its output is measured on
_STEP = 1e-3  # of the weight's scale: small, so that the change is linear in it


def bench_training(
    recipe: Recipe, data: Path | None = None, *, batches: int = 4, rounds: int = 10, baseline: str = "dense"
) -> Bench:
    """Measure training steps on a recipe's prepared data.

    The arguments are the options of ``bench train``; a sample is one step on each of the batches.

    Returns:
        a row for each candidate: `speed` is its tokens a second over the baseline's, `executions` what ``tune`` chose
        for its maps.

    Raises:
        DataError: the data is not prepared.
        UserError: there is no such candidate.
    """
    data = data or data_root()
    device = pick_device(recipe.training.device)
    set_threads(recipe.training.threads)
    kind, training = kind_of(recipe), recipe.training
    task: Any = kind.open(recipe, data)
    chosen = task.plan(0)[:batches]
    sample = [task.collate(rows).to(device) for rows in chosen]
    items = sum(batch.target_tokens for batch in sample)

    models: dict[str, nn.Module] = {}
    steps, executions = {}, {}
    for name, each in variants_of(recipe).items():
        model = models[name] = kind.open(each, data).build_model(device)
        if each.model.execution == "auto":
            executions[name] = fastest_executions(model, task, chosen[0], training)
        steps[name] = stepper(model, partial(mean_loss, task), training, sample, device)
    if isinstance(recipe, TranslationRecipe):
        sizes = task.prepared.tokenizers
        torchs = TorchsOwn(recipe.model, max(sizes.source.size, sizes.target.size)).to(device)
        smoothing, adam = recipe.training.label_smoothing, torch.optim.Adam(torchs.parameters())
        models["nn.Transformer"] = torchs
        steps["nn.Transformer"] = stepper(
            torchs, lambda model, batch: model(batch.source, batch.target, smoothing), training, sample, device, adam
        )
    check_known("candidate", baseline, list(steps))
    timings = compare("training steps", steps, rounds=rounds, baseline=baseline, device=device)
    rows = []
    for name, timing in timings.items():
        seconds = timing.seconds
        step = Spread(*(value / len(sample) for value in (seconds.median, seconds.low, seconds.high)))
        row: dict[str, Any] = {"candidate": name, "parameters": parameters_of(models[name])}
        row |= {"step_seconds": step, "target_tokens_per_second": round(items / seconds.median, 1)}
        rows.append({**row, "speed": timing.ratio.inverse, "executions": executions.get(name, {})})
    text = hasattr(task, "prepared")  # of other data there is no padding
    share = real_token_share(task.plan(0), lengths_of(task.prepared.split("train"))) if text else 1.0
    about: dict[str, Any] = {"recipe": recipe.name, "precision": training.precision, "baseline": baseline}
    about |= {"batches": len(sample), training.batch_key: getattr(training, training.batch_key), "real_share": share}
    title = f"{recipe.name}, {training.precision}, speed over {baseline}, {share:.1%} of the positions are real tokens"
    return Bench(title, {**about, **machine(device)}, rows)


class TorchsOwn(nn.Module):
    """The yardstick: ``nn.Transformer`` of a recipe's sizes, one table for both sides and the generator."""

    def __init__(self, section: TransformerSection, vocabulary: int) -> None:
        super().__init__()
        depths = section.encoder_layers, section.decoder_layers
        sizes = section.width, section.heads, *depths, section.feed_forward, section.dropout
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="enable_nested_tensor")  # a fast path of inference only
            self.transformer = nn.Transformer(*sizes, batch_first=True, norm_first=section.norm == "pre")
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = section.activation_dropout
            for part in layer.children():
                if isinstance(part, nn.MultiheadAttention):
                    part.dropout = section.attention_dropout
        self.scale = math.sqrt(section.width)
        self.embedding = nn.Embedding(vocabulary, section.width)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        self.positions = nn.Parameter(torch.zeros(section.width), requires_grad=False)  # as dear to add as a table's

    def forward(self, source: Tensor, target: Tensor, smoothing: float) -> Tensor:
        """Return the mean label-smoothed cross-entropy: source (B, S), target (B, T + 1) from BOS to EOS."""
        padding, table, inputs = source == PAD, self.embedding.weight, target[:, :-1]  # (B, S)
        embedded = [F.embedding(ids, table) * self.scale + self.positions for ids in (source, inputs)]
        hidden = self.transformer(
            *embedded,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], device=target.device),  # (T, T)
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )  # (B, T, d)
        logits, labels = F.linear(hidden, table), target[:, 1:]  # (B, T, V), (B, T)
        return F.cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=PAD, label_smoothing=smoothing)


def variants_of(recipe: R) -> dict[str, R]:
    """Return the variants of a recipe that are measured: the dense twin first, the base where it composes."""
    own: Any = recipe.model
    composed = isinstance(own, StackSection) and own.composes
    models = {"dense": own.dense_twin, **({"base": own.dense_twin.uncomposed} if composed else {})}
    if own.algebra != "real":
        models |= {f"base {own.uncomposed.variant}": own.uncomposed} if composed else {}
        models[own.variant] = own
    return {name: recipe.model_copy(update={"model": model}) for name, model in models.items()}


def bench_decoding(
    recipe: TranslationRecipe,
    data: Path | None = None,
    *,
    split: str = "test",
    sentences: int = 1000,
    rounds: int = 5,
    baseline: str = "dense",
) -> Bench:
    """Measure beam search on a split of a recipe's prepared data, by the dense copy that translates.

    The arguments are the options of ``bench decode``.

    Returns:
        a row for each candidate; `speed` is to the baseline's.

    Raises:
        DataError: the data is not prepared, or has no such split.
        UserError: there is no such candidate.
    """
    variants = variants_of(recipe)
    check_known("candidate", baseline, list(variants))
    prepared = PreparedData.find(recipe.data, data or data_root())
    texts = prepared.split(split)
    rows = evenly(len(texts), sentences)
    sources = [[*map(int, texts.source[row]), EOS] for row in rows]
    lengths = [len(texts.target[row]) for row in rows]
    device = pick_device(recipe.training.device)
    set_threads(recipe.training.threads)
    sizes = prepared.tokenizers.source.size, prepared.tokenizers.target.size
    searches: dict[str, Callable[[], object]] = {}
    for name, each in variants.items():
        model: Any = to_dense(build_transformer(each.model, *sizes, device).eval())
        searches[name] = searcher(model, sources, lengths, recipe, sizes[1])
    timings = compare("searches", searches, rounds=rounds, baseline=baseline, device=device)
    measured = [{"candidate": name, **_speed(timing, len(rows))} for name, timing in timings.items()]
    beam = recipe.decoding.beam
    about = {"recipe": recipe.name, "sentences": len(rows), "output_tokens": sum(lengths) + len(lengths), "beam": beam}
    about |= {"batch_tokens": recipe.decoding.batch_tokens, "baseline": baseline}
    title = f"{recipe.name}: {len(rows)} sentences, beam {beam}, speed over {baseline}"
    return Bench(title, {**about, **machine(device)}, measured)


def _speed(timing: Timing, sentences: int) -> dict[str, Any]:
    rate = sentences / timing.seconds.median
    return {"search_seconds": timing.seconds, "sentences_per_second": rate, "speed": timing.ratio.inverse}


def evenly(total: int, count: int) -> list[int]:
    """Return `count` of the numbers below a total, evenly apart; all where there are not so many."""
    count = min(count, total)
    return [row * total // count for row in range(count)]


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
    model: Seq2Seq,
    sources: Sequence[Sequence[int]],
    lengths: Sequence[int],
    recipe: TranslationRecipe,
    allowed: int,
) -> Callable[[], list[list[Hypothesis]]]:
    """Return a function that searches sources to so many tokens each, in the recipe's batches and by its beam."""
    decoding, device, endless = recipe.decoding, pick_device(recipe.training.device), _Endless(model)
    batches = [
        (pad([sources[row] for row in rows]).to(device), [lengths[row] for row in rows])
        for rows in plan([len(source) for source in sources], decoding.batch_tokens)
    ]

    def search() -> list[list[Hypothesis]]:
        best = []
        for source, longest in batches:
            best += beam_search(
                endless, source, beam=decoding.beam, alpha=decoding.alpha, max_lengths=longest, allowed=allowed
            )
        return best

    return search


def bench_engines(
    run: Run,
    engines: Sequence[str],
    *,
    split: str = "test",
    sentences: int = 1000,
    rounds: int = 5,
) -> Bench:
    """Measure a translator's engines, on text of its run.

    The arguments are the options of ``bench decode``.

    Returns:
        a row for each engine: `speed` is to the first engine's; `same` counts the best translations that equal the
        first engine's, `bleu` is of the best translations.

    Raises:
        UserError: no such engine.
        MissingExtraError: one is not installed.
        RunError: something of the run is missing or damaged.
    """
    settings = run.recipe_of(TranslationRecipe).decoding
    rows = evenly(len(read_text(run, split, "source")), sentences)
    lines, references = ([read_text(run, split, side)[row] for row in rows] for side in ("source", "target"))
    translators = {}
    for name in dict.fromkeys(engines):
        engine, _, quantize = name.partition(":")
        if quantize and engine != CTRANSLATE2:
            raise UserError(f"{name}: only ctranslate2 has types; write {engine}")
        chosen = with_engine(run, engine, AUTO, quantize or None)
        translators[name] = load_translator(chosen, AUTO, "cpu", cleaned=True, threads=torch.get_num_threads())
    found: dict[str, list[list[Translation]]] = {}

    def candidate(name: str, translator: Translator) -> Callable[[], object]:
        def translate() -> None:
            with silence():
                found[name] = translator.translate(lines)

        return translate

    first = next(iter(translators))
    candidates = {name: candidate(name, translator) for name, translator in translators.items()}
    timings = compare("engines", candidates, rounds=rounds)
    best = {name: [each[0].text for each in translations] for name, translations in found.items()}
    scores = {name: bleu(texts, references) for name, texts in best.items()}
    measured = [
        {
            "engine": name,
            **_speed(timing, len(lines)),
            "same": sum(one == other for one, other in zip(best[name], best[first], strict=True)),
            "bleu": scores[name].value,
        }
        for name, timing in timings.items()
    ]
    signature = scores[first].signature
    about = {"run": run.name, "split": split, "sentences": len(lines), "decoding": settings.model_dump()}
    title = f"{run.name}: {len(lines)} sentences of {split}, beam {settings.beam}, speed over {first}, BLEU {signature}"
    return Bench(title, {**about, "signature": signature, **machine()}, measured)


# ------------------------------------------------------------------------------------------------- learning rates


_Map = KroneckerWeight | NarrowEmbedding | TwoFactorLinear


def bench_rates(recipe: Recipe, data: Path | None = None) -> list[dict[str, Any]]:
    """Return a row for each map and factor: ``map``, ``factor``, ``rate`` and ``multiple`` of the recipe's, ``change``.

    `change` is the root mean square of what one step of this factor alone moves the map's output by, over that of a
    step of the dense twin's weight.

    Raises:
        DataError: the data is not prepared.
    """
    training, device = recipe.training, pick_device(recipe.training.device)
    task = kind_of(recipe).open(recipe, data or data_root())
    with isolated(device, training.threads):
        torch.manual_seed(training.seed)
        model = task.build_model(device)
        rates = build_rates(model, training)
        dense = to_dense(model).eval()
        inputs: dict[str, Tensor] = {}
        _watch(dense, inputs)
        mean_loss(task, dense, task.collate(task.plan(0)[0]).to(device)).backward()  # type: ignore[no-untyped-call]
        own: dict[Tensor, float] = {model.get_parameter(name): rate for name, rate in rates.items()}
        twins = dict(dense.named_modules())
        rows = []
        for name, module in model.named_modules():
            gradient = getattr(twins.get(name), "weight", torch.empty(0)).grad
            if isinstance(module, _Map) and gradient is not None:
                for factor, multiple, change in _changes(module, gradient, inputs.get(name), own):
                    rate = training.learning_rate * multiple
                    rows.append({"map": name, "factor": factor, "rate": rate, "multiple": multiple, "change": change})
    return rows


def rates_table(recipe: Recipe, rows: list[dict[str, Any]]) -> Table:
    cells = [
        (row["map"], row["factor"], f"{row['rate']:.2e}", f"{row['multiple']:.3g}", f"{row['change']:.2f}")
        for row in rows
    ]
    title = f"{recipe.name}, {recipe.variant}: change of a map's output by a step, 1 is that of the dense weight"
    return Table(title, ["map", "factor", "rate", "rate / recipe's", "change / dense twin's"], cells, text=(0, 1))


def _watch(dense: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Keep the first inputs (T, d) of each linear map."""
    for name, module in dense.named_modules():
        if isinstance(module, nn.Linear):

            def keep(module: nn.Module, args: tuple[Tensor, ...], name: str = name) -> None:
                inputs.setdefault(name, args[0].detach().flatten(0, -2)[:_TOKENS])

            module.register_forward_pre_hook(keep)


def _changes(
    module: _Map, gradient: Tensor, x: Tensor | None, rates: Mapping[Tensor, float]
) -> Iterator[tuple[str, float, float]]:
    """Yield of each factor its name, its rate and its change; of an LSTM's map and a table's on random inputs."""
    H = module.weight  # (k, d); the dense copy may have fewer rows
    G = nn.functional.pad(gradient, (0, 0, 0, len(H) - len(gradient)))
    x = torch.randn(_TOKENS, H.shape[1], device=H.device) if x is None else x
    step = _STEP * H.detach().square().mean().sqrt()
    start = H.detach().clone()
    moving = G.abs().sum(1, keepdim=True) > 0  # rows of a table that the batch has

    def moved(change: Tensor) -> float:
        return float(((change * moving) @ x.T).square().mean().sqrt())

    table = isinstance(module, PHMEmbedding | NarrowEmbedding)
    twin = moved(step * (1.0 if table else dense_rate(H.shape[1])) * G.sign())
    factors = {name: part for name, part in module.named_parameters() if "bias" not in name and part in rates}
    gradients = torch.autograd.grad(H, list(factors.values()), G)
    with torch.no_grad():
        for (name, part), own in zip(factors.items(), gradients, strict=True):
            before = part.clone()
            part.sub_(step * rates[part] * own.sign())
            change = module.weight - start
            part.copy_(before)
            yield name, rates[part], moved(change) / twin
