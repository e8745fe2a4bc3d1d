"""``bench train``: training steps of a recipe, of its dense twin and of a bare ``nn.Transformer``, in turns.

A step is what the trainer does for one: the batch's loss, the backward pass, the gradient norm, the update. All
three see the same batches. Ratios are of tokens per second: above 1 is faster than the baseline.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phmctl.benchmarks.bare import BareTransformer, bare_loss
from phmctl.benchmarks.timing import Spread, compare, watched
from phmctl.data.batching import Batch, real_token_share
from phmctl.data.store import PreparedData
from phmctl.devices import pick_device, set_threads
from phmctl.recipe.schema import TranslationRecipe
from phmctl.tasks.translation import TranslationTask
from phmctl.training.optimiser import build_optimiser
from phmctl.training.precision import build_autocast

Step = Callable[[], object]


@dataclass(frozen=True)
class TrainingRow:
    """One candidate's speed."""

    candidate: str  # the recipe's variant, "dense" or "nn.Transformer"
    parameters: int
    step_seconds: Spread
    target_tokens_per_second: float  # real tokens, at the median
    speed: Spread  # tokens/s relative to the baseline's, within a round


@dataclass(frozen=True)
class TrainingBench:
    """What ``bench train`` measured."""

    recipe: str
    device: str
    threads: int
    precision: str
    batches: int
    batch_tokens: int
    real_share: float  # of an epoch's positions, both sides
    baseline: str
    rows: Sequence[TrainingRow]

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers."""
        return asdict(self)


def bench_training(
    recipe: TranslationRecipe, data: Path, *, batches: int = 4, rounds: int = 10, baseline: str = "dense"
) -> TrainingBench:
    """Measure training steps on a recipe's prepared data.

    Args:
        recipe: the experiment; its dense twin is the same with ``algebra: real``.
        data: the data folder.
        batches: how many different batches are cycled through.
        rounds: samples of each candidate; a sample is one step on each batch.
        baseline: ``dense`` or ``nn.Transformer``.

    Raises:
        DataError: the data is not prepared.
    """
    device = pick_device(recipe.training.device)
    set_threads(recipe.training.threads)
    task = TranslationTask(recipe, PreparedData.find(recipe.data, data))
    sample = [batch.to(device) for batch in itertools.islice(task.batches(0), batches)]
    models = _models(recipe, task, device)
    steps = {name: _stepper(model, task, sample, device) for name, model in models.items()}
    with watched("training steps", len(steps), rounds) as advance:
        timings = compare(steps, rounds=rounds, baseline=baseline, warmup=1, device=device, advance=advance)
    tokens = sum(batch.target_tokens for batch in sample)
    rows = [
        TrainingRow(
            name,
            sum(p.numel() for p in models[name].parameters() if p.requires_grad),
            _scaled(timing.seconds, 1 / len(sample)),
            tokens / timing.seconds.median,
            Spread(1 / timing.ratio.median, 1 / timing.ratio.upper, 1 / timing.ratio.lower),
        )
        for name, timing in timings.items()
    ]
    training = recipe.training
    split = task.prepared.split("train")
    share = real_token_share(task.plan(split, epoch=0, shuffle=True), split.source.lengths, split.target.lengths)
    threads = torch.get_num_threads()
    return TrainingBench(
        recipe.name, str(device), threads, training.precision, len(sample), training.batch_tokens, share, baseline, rows
    )


def _models(recipe: TranslationRecipe, task: TranslationTask, device: torch.device) -> dict[str, nn.Module]:
    """Return the candidates by name, the dense twin first."""
    models: dict[str, nn.Module] = {"dense": TranslationTask(recipe.dense_twin, task.prepared).build_model(device)}
    if recipe.model.algebra != "real":
        models[recipe.variant] = task.build_model(device)
    sizes = task.prepared.tokenizers
    models["nn.Transformer"] = BareTransformer(recipe.model, max(sizes.source.size, sizes.target.size)).to(device)
    return models


def _stepper(model: nn.Module, task: TranslationTask, sample: Sequence[Batch], device: torch.device) -> Step:
    """Return a function that trains one step on each batch of the sample."""
    training = task.recipe.training
    autocast = build_autocast(device, training.precision)
    bare = isinstance(model, BareTransformer)
    optimiser = torch.optim.Adam(model.parameters()) if bare else build_optimiser(model, training)
    parameters = [p for p in model.parameters() if p.requires_grad]
    model.train()

    def loss(batch: Batch) -> torch.Tensor:
        if bare:
            return bare_loss(model, batch.source, batch.target, training.label_smoothing)
        total, tokens = task.loss(model, batch)
        return total / tokens

    def steps() -> None:
        for batch in sample:
            with autocast():
                value = loss(batch)
            value.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, training.clip or torch.inf)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return steps


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.median * factor, spread.lower * factor, spread.upper * factor)
