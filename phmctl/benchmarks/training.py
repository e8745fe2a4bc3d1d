"""``bench train``: training steps of a recipe, of its dense twin and of the task's other models, in turns.

A step is what the trainer does for one: the batch's loss, the backward pass, the gradient norm, the update. All
see the same batches. Ratios are of tokens per second: above 1 is faster than the baseline.
"""

import math
import warnings
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.benchmarks.ratios import Bench, Spread, compare, machine, parameters_of
from phmctl.data.batches import lengths_of, real_token_share
from phmctl.data.prepared.folder import data_root
from phmctl.data.special import PAD
from phmctl.devices import pick_device, set_threads
from phmctl.errors import check_known
from phmctl.nn.tuning import tune
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import Recipe, TranslationRecipe
from phmctl.tasks.registry import kind_of
from phmctl.training.optimiser import mean_loss, stepper

R = TypeVar("R", bound=Recipe)


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
    plan = task.plan(0)[:batches]
    sample = [task.collate(rows).to(device) for rows in plan]
    items = sum(batch.target_tokens for batch in sample)

    models: dict[str, nn.Module] = {}
    steps, executions = {}, {}
    for name, each in variants_of(recipe).items():
        model = models[name] = kind.open(each, data).build_model(device)
        if each.model.execution == "auto":
            executions[name] = tune(model, task.cost(plan[0]).tokens)
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
        self.positions = nn.Parameter(torch.zeros(1024, section.width), requires_grad=False)

    def forward(self, source: Tensor, target: Tensor, smoothing: float) -> Tensor:
        """Return the mean label-smoothed cross-entropy: source (B, S), target (B, T + 1) from BOS to EOS."""
        padding, table, inputs = source == PAD, self.embedding.weight, target[:, :-1]  # (B, S)
        embedded = [F.embedding(ids, table) * self.scale + self.positions[: ids.shape[1]] for ids in (source, inputs)]
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
    variants = {"dense": recipe.dense_twin}
    if recipe.dense_twin.base is not None:
        variants["base"] = recipe.dense_twin.base
    if recipe.model.algebra != "real":
        if recipe.base is not None:
            variants[f"base {recipe.base.variant}"] = recipe.base
        variants[recipe.variant] = recipe
    return variants
