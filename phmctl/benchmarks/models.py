"""``bench train`` and ``bench decode``: compare a recipe's model with its dense twin and the task's other models.

A training step is the trainer's: the loss of a batch, the backward pass, the gradient norm and the update. All
candidates see the same batches. Decoding is beam search over padded batches of token ids; reading, tokenising and
printing are not timed. The models are untrained, so EOS is suppressed until an output has the length of its reference.
Speeds are relative to the baseline, from rounds in which the candidates take turns; above 1 is faster.
"""

import math
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.assembly import build_transformer
from phmctl.benchmarks.ratios import Bench, Timing, compare, machine, parameters_of
from phmctl.console import silence
from phmctl.data import EOS, PAD
from phmctl.data.batches import lengths_of, real_token_share
from phmctl.data.prepared import PreparedData, data_root
from phmctl.decoding.beam import Seq2Seq, beam_search, pad
from phmctl.decoding.loading import load_translator
from phmctl.decoding.search import Hypothesis, plan
from phmctl.decoding.translator import Translator
from phmctl.devices import pick_device, set_threads
from phmctl.errors import UserError, check_known
from phmctl.exports import CTRANSLATE2
from phmctl.inference.opening import ModelOptions, with_engine
from phmctl.metrics.text import bleu
from phmctl.nn.convert import to_dense
from phmctl.recipe.loading import expect
from phmctl.recipe.models import StackSection, TransformerSection
from phmctl.recipe.schema import Recipe, TranslationRecipe
from phmctl.runs import AUTO, Run
from phmctl.runs.copies import read_text
from phmctl.tasks.registry import trained_kind
from phmctl.training.optimiser import mean_loss, stepper

R = TypeVar("R", bound=Recipe)
_EOS_PENALTY = -1e4  # added to the logit of EOS


def bench_training(
    recipe: Recipe, data: str | Path | None = None, *, batches: int = 4, rounds: int = 10, baseline: str = "dense"
) -> Bench:
    """Time training steps on a recipe's prepared data; a sample is one step on each of the batches.

    `speed` divides a candidate's tokens per second by the baseline's. Raises DataError if the data is not prepared,
    UserError if the baseline is not a candidate.
    """
    data = data_root(data)
    training = recipe.training
    device = pick_device(training.device)
    set_threads(training.threads)
    kind = trained_kind(recipe)
    task: Any = kind.open(recipe, data)
    sample = [task.collate(rows).to(device) for rows in task.plan(0)[:batches]]

    models: dict[str, nn.Module] = {}
    steps: dict[str, Callable[[], object]] = {}
    for name, variant in variants_of(recipe).items():
        models[name] = kind.open(variant, data).build_model(device)
        steps[name] = stepper(models[name], partial(mean_loss, task), training, sample, device)
    if isinstance(recipe, TranslationRecipe):
        tokenizers = task.prepared.tokenizers
        vocabulary = max(tokenizers.source.size, tokenizers.target.size)
        reference = TorchTransformer(recipe.model, vocabulary, recipe.training.label_smoothing).to(device)
        adam = torch.optim.Adam(reference.parameters())
        models["nn.Transformer"] = reference
        steps["nn.Transformer"] = stepper(reference, _reference_loss, training, sample, device, adam)
    check_known("candidate", baseline, list(steps))
    timings = compare("training steps", steps, rounds=rounds, baseline=baseline, device=device)

    target_tokens = sum(batch.target_tokens for batch in sample)
    rows = [
        {
            "candidate": name,
            "parameters": parameters_of(models[name]),
            "step_seconds": timing.seconds.divided(len(sample)),
            "target_tokens_per_second": round(target_tokens / timing.seconds.median, 1),
            "speed": timing.ratio.inverse,
        }
        for name, timing in timings.items()
    ]
    real_share = 1.0  # only texts are padded
    if hasattr(task, "prepared"):
        real_share = real_token_share(task.plan(0), lengths_of(task.prepared.split("train")))
    about = {"recipe": recipe.name, "precision": training.precision, "baseline": baseline, "batches": len(sample)}
    about |= {training.batch_key: getattr(training, training.batch_key), "real_share": real_share}
    title = (
        f"{recipe.name}, {training.precision}, speed over {baseline}, {real_share:.1%} of the positions are real tokens"
    )
    return Bench(title, {**about, **machine(device)}, rows)


def _reference_loss(model: nn.Module, batch: Any) -> Tensor:
    loss: Tensor = model(batch.source, batch.target)
    return loss


class TorchTransformer(nn.Module):
    """``nn.Transformer`` with a recipe's sizes, for comparison; both sides and the generator share an embedding."""

    def __init__(self, section: TransformerSection, vocabulary: int, smoothing: float = 0.0) -> None:
        super().__init__()
        self.smoothing = smoothing
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="enable_nested_tensor")  # concerns inference only
            self.transformer = nn.Transformer(
                section.width,
                section.heads,
                section.encoder_layers,
                section.decoder_layers,
                section.feed_forward,
                section.dropout,
                batch_first=True,
                norm_first=section.norm == "pre",
            )
        for layer in (*self.transformer.encoder.layers, *self.transformer.decoder.layers):
            layer.dropout.p = section.activation_dropout
            for module in layer.children():
                if isinstance(module, nn.MultiheadAttention):
                    module.dropout = section.attention_dropout
        self.scale = math.sqrt(section.width)
        self.embedding = nn.Embedding(vocabulary, section.width)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        # One vector for all positions takes as long to add as a table of positions.
        self.positions = nn.Parameter(torch.zeros(section.width), requires_grad=False)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Return the mean label-smoothed cross-entropy for source (B, S) and target (B, T + 1), BOS to EOS."""
        padding = source == PAD  # (B, S)
        table = self.embedding.weight
        inputs, labels = target[:, :-1], target[:, 1:]  # (B, T)
        hidden = self.transformer(
            F.embedding(source, table) * self.scale + self.positions,
            F.embedding(inputs, table) * self.scale + self.positions,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(inputs.shape[1], device=target.device),  # (T, T)
            tgt_is_causal=True,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )  # (B, T, d)
        logits = F.linear(hidden, table)  # (B, T, V)
        logits, labels = logits.flatten(0, 1), labels.flatten()
        return F.cross_entropy(logits, labels, ignore_index=PAD, label_smoothing=self.smoothing)


def variants_of(recipe: R) -> dict[str, R]:
    """Return the recipes to compare, by name: the dense twin and the recipe, with and without compositions."""
    section: Any = recipe.model
    structured = section.algebra != "real"
    models = {"dense": section.dense_twin}
    if isinstance(section, StackSection) and section.composes:
        models["base"] = section.dense_twin.uncomposed
        if structured:
            models[f"base {section.uncomposed.variant}"] = section.uncomposed
    if structured:
        models[section.variant] = section
    return {name: recipe.model_copy(update={"model": model}) for name, model in models.items()}


def bench_decoding(
    recipe: Recipe,
    data: str | Path | None = None,
    *,
    split: str = "test",
    sentences: int = 1000,
    rounds: int = 5,
    baseline: str = "dense",
) -> Bench:
    """Time beam search on a split of a recipe's prepared data, with dense copies of the models, as in translation.

    Raises DataError if the data is not prepared or does not have this split, UserError if the baseline is not a
    candidate.
    """
    recipe = expect(recipe, TranslationRecipe)
    variants = variants_of(recipe)
    check_known("candidate", baseline, list(variants))
    prepared = PreparedData.find(recipe.data, data_root(data))
    texts = prepared.split(split)
    rows = _spread_rows(len(texts), sentences)
    sources = [[*map(int, texts.source[row]), EOS] for row in rows]
    lengths = [len(texts.target[row]) for row in rows]
    device = pick_device(recipe.training.device)
    set_threads(recipe.training.threads)
    sizes = prepared.tokenizers.source.size, prepared.tokenizers.target.size
    searches: dict[str, Callable[[], object]] = {}
    for name, variant in variants.items():
        model: Any = to_dense(build_transformer(variant.model, *sizes, device).eval())
        searches[name] = searcher(model, sources, lengths, recipe, sizes[1])
    timings = compare("searches", searches, rounds=rounds, baseline=baseline, device=device)
    speeds = [{"candidate": name, **_speed(timing, len(rows))} for name, timing in timings.items()]
    beam, batch_tokens = recipe.decoding.beam, recipe.decoding.batch_tokens
    about = {"recipe": recipe.name, "sentences": len(rows), "output_tokens": sum(lengths) + len(lengths)}
    about |= {"beam": beam, "batch_tokens": batch_tokens, "baseline": baseline}
    title = f"{recipe.name}: {len(rows)} sentences, beam {beam}, speed over {baseline}"
    return Bench(title, {**about, **machine(device)}, speeds)


def _speed(timing: Timing, sentences: int) -> dict[str, Any]:
    rate = sentences / timing.seconds.median
    return {"search_seconds": timing.seconds, "sentences_per_second": rate, "speed": timing.ratio.inverse}


def _spread_rows(total: int, count: int) -> list[int]:
    """Return `count` evenly spaced numbers from 0 to total - 1, or all of them if `count` is larger."""
    count = min(count, total)
    return [row * total // count for row in range(count)]


class _Endless:
    """A model that does not predict EOS, so that each output has its maximum length."""

    def __init__(self, model: Seq2Seq) -> None:
        self._model = model
        self.encode = model.encode
        self.start = model.start

    def step(self, tokens: Tensor, state: Any) -> Tensor:
        logits = self._model.step(tokens, state)  # (B, K, V)
        logits[..., EOS] += _EOS_PENALTY
        return logits


def searcher(
    model: Seq2Seq,
    sources: Sequence[Sequence[int]],
    lengths: Sequence[int],
    recipe: TranslationRecipe,
    allowed: int,
) -> Callable[[], list[list[Hypothesis]]]:
    """Return a function that decodes each source to its length in `lengths`, with the recipe's batches and beam."""
    decoding = recipe.decoding
    device = pick_device(recipe.training.device)
    endless = _Endless(model)
    batches = []
    for rows in plan([len(source) for source in sources], decoding.batch_tokens):
        batches.append((pad([sources[row] for row in rows]).to(device), [lengths[row] for row in rows]))
    search_batch = partial(beam_search, endless, beam=decoding.beam, alpha=decoding.alpha, allowed=allowed)

    def search() -> list[list[Hypothesis]]:
        hypotheses = []
        for source, max_lengths in batches:
            hypotheses += search_batch(source, max_lengths=max_lengths)
        return hypotheses

    return search


def bench_engines(
    path: str | Path,
    engines: Sequence[str],
    *,
    split: str = "test",
    sentences: int = 1000,
    rounds: int = 5,
) -> Bench:
    """Time a translator's engines on the text of its run.

    `speed` is relative to the first engine, and `same` counts the translations that equal the first engine's. Raises
    UserError if an engine is unknown, MissingExtraError if it is not installed.
    """
    run = Run.open(path)
    settings = run.recipe_of(TranslationRecipe).decoding
    source, target = read_text(run, split, "source"), read_text(run, split, "target")
    rows = _spread_rows(len(source), sentences)
    lines = [source[row] for row in rows]
    references = [target[row] for row in rows]
    translators: dict[str, Translator] = {}
    for name in dict.fromkeys(engines):
        engine, _, quantize = name.partition(":")
        if quantize and engine != CTRANSLATE2:
            raise UserError(f"{name}: only ctranslate2 supports quantisation types; write {engine}")
        opened = with_engine(run, ModelOptions(engine=engine, quantize=quantize or None))
        translators[name] = load_translator(opened, AUTO, "cpu", cleaned=True, threads=torch.get_num_threads())
    texts: dict[str, list[str]] = {}

    def translate(name: str) -> None:
        with silence():
            texts[name] = [hypotheses[0].text for hypotheses in translators[name].translate(lines)]

    timings = compare("engines", {name: partial(translate, name) for name in translators}, rounds=rounds)
    first = next(iter(translators))
    scores = {name: bleu(translations, references) for name, translations in texts.items()}
    measured = [
        {
            "engine": name,
            **_speed(timing, len(lines)),
            "same": sum(text == first_text for text, first_text in zip(texts[name], texts[first], strict=True)),
            "bleu": scores[name].value,
        }
        for name, timing in timings.items()
    ]
    signature = scores[first].signature
    about = {"run": run.name, "split": split, "sentences": len(lines), "decoding": settings.model_dump()}
    title = f"{run.name}: {len(lines)} sentences of {split}, beam {settings.beam}, speed over {first}, BLEU {signature}"
    return Bench(title, {**about, "signature": signature, **machine()}, measured)
