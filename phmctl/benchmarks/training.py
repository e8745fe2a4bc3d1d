"""``bench train``: training steps of a recipe, of its dense twin and of the task's other models, in turns.

A step is what the trainer does for one: the batch's loss, the backward pass, the gradient norm, the update. All
see the same batches. Ratios are of tokens per second: above 1 is faster than the baseline.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from phmctl.assembly import bare_transformer
from phmctl.benchmarks.ratios import Bench, Spread, check_positive, compare, machine, parameters_of
from phmctl.data.batches import lengths_of, real_token_share
from phmctl.data.prepared.folder import data_root
from phmctl.devices import pick_device, set_threads
from phmctl.errors import check_known
from phmctl.models.transformer import bare_loss
from phmctl.nn.tuning import tune
from phmctl.recipe.schema import Recipe, TranslationRecipe
from phmctl.tasks.registry import kind_of
from phmctl.training.measured import mean_loss, stepper

R = TypeVar("R", bound=Recipe)


def bench_training(
    recipe: Recipe, data: Path | None = None, *, batches: int = 4, rounds: int = 10, baseline: str = "dense"
) -> Bench:
    """Measure training steps on a recipe's prepared data.

    Args:
        recipe: the experiment; its dense twin is the same with ``algebra: real``.
        data: the data folder; None is the default one.
        batches: how many different batches are cycled through.
        rounds: samples of each candidate; a sample is one step on each batch.
        baseline: ``dense``; of a composed model also ``base``, its dense twin without compositions; or another
            candidate.

    Returns:
        a row for each candidate: `speed` is its tokens a second over the baseline's, `executions` what ``tune`` chose
        for its maps.

    Raises:
        DataError: the data is not prepared.
        UserError: there is no such candidate, or no batch.
    """
    check_positive(batches=batches)
    data = data or data_root()
    device = pick_device(recipe.training.device)
    set_threads(recipe.training.threads)
    kind, training = kind_of(recipe), recipe.training
    task = kind.open(recipe, data)
    plan = task.plan(0)[:batches]
    sample = [task.collate(rows).to(device) for rows in plan]
    items = sum(batch.target_tokens for batch in sample)

    candidates, executions = {}, {}
    for name, each in variants_of(recipe).items():
        model = kind.open(each, data).build_model(device)
        candidates[name] = Candidate(model, partial(mean_loss, task))
        if each.model.execution == "auto":
            executions[name] = tune(model, task.cost(plan[0]).tokens)
    if isinstance(recipe, TranslationRecipe):
        candidates["nn.Transformer"] = _torchs_own(task, recipe, device)
    check_known("candidate", baseline, list(candidates))
    steps = {
        name: stepper(each.model, each.loss, training, sample, device, each.optimiser)
        for name, each in candidates.items()
    }
    timings = compare("training steps", steps, rounds=rounds, baseline=baseline, device=device)
    rows = []
    for name, timing in timings.items():
        seconds = timing.seconds
        step = Spread(*(value / len(sample) for value in (seconds.median, seconds.low, seconds.high)))
        row: dict[str, Any] = {"candidate": name, "parameters": parameters_of(candidates[name].model)}
        row |= {"step_seconds": step, "target_tokens_per_second": round(items / seconds.median, 1)}
        rows.append({**row, "speed": timing.ratio.inverse, "executions": executions.get(name, {})})
    share = _real_share(task)
    about: dict[str, Any] = {"recipe": recipe.name, "precision": training.precision, "baseline": baseline}
    about |= {"batches": len(sample), training.batch_key: getattr(training, training.batch_key), "real_share": share}
    title = f"{recipe.name}, {training.precision}, speed over {baseline}, {share:.1%} of the positions are real tokens"
    return Bench(title, {**about, **machine(device)}, rows)


@dataclass(frozen=True)
class Candidate:
    """A model that is measured on the task's batches."""

    model: nn.Module  # on the device
    loss: Callable[[nn.Module, Any], Tensor]  # of the model and a batch, a mean
    optimiser: torch.optim.Optimizer | None = None  # its own; None is the recipe's


def _torchs_own(task: Any, recipe: TranslationRecipe, device: torch.device) -> Candidate:
    """Return ``nn.Transformer`` of the recipe's sizes, with its own optimiser."""
    sizes = task.prepared.tokenizers
    model = bare_transformer(recipe.model, max(sizes.source.size, sizes.target.size)).to(device)

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return bare_loss(model, batch.source, batch.target, recipe.training.label_smoothing)

    return Candidate(model, loss, torch.optim.Adam(model.parameters()))


def _real_share(task: Any) -> float:
    """Return the share of an epoch's positions that hold a token, not padding; of text, all sides."""
    if not hasattr(task, "prepared"):
        return 1.0
    return real_token_share(task.plan(0), lengths_of(task.prepared.split("train")))


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
