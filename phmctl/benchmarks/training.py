"""``bench train``: training steps of a recipe, of its dense twin and of the task's other models, in turns.

A step is what the trainer does for one: the batch's loss, the backward pass, the gradient norm, the update. All
see the same batches. Ratios are of tokens per second: above 1 is faster than the baseline.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from phmctl.accounting.multiplications import multiplications
from phmctl.backends.choices import as_text, taken_from
from phmctl.backends.machine import processor
from phmctl.benchmarks.timing import Spread, Timing, compare, watched
from phmctl.console import Table
from phmctl.devices import pick_device, set_threads
from phmctl.errors import check_known
from phmctl.recipe.schema import Recipe, TrainingSection
from phmctl.tasks.base import Candidate, Task, TaskKind
from phmctl.tasks.registry import kind_of
from phmctl.training.optimiser import build_optimiser
from phmctl.training.precision import build_autocast

Step = Callable[[], object]
R = TypeVar("R", bound=Recipe)


@dataclass(frozen=True)
class TrainingRow:
    """One candidate's speed."""

    candidate: str  # the recipe's variant, "dense", or a model of the task's such as "nn.Transformer"
    parameters: int
    step_seconds: Spread
    target_tokens_per_second: float  # real tokens, at the median
    speed: Spread  # tokens/s relative to the baseline's, within a round
    multiplications: int  # of a step, the mean of the batches
    allowed: float  # the speed that multiplications alone would give, relative to the baseline's


@dataclass(frozen=True)
class TrainingBench:
    """What ``bench train`` measured."""

    recipe: str
    device: str
    processor: str
    threads: int
    precision: str
    batches: int
    batch_key: str  # how the recipe measures a batch
    batch: int  # and how large it is
    real_share: float  # of an epoch's positions
    baseline: str
    rows: Sequence[TrainingRow]
    choices: Mapping[str, str]  # how the maps of all were applied, by which library: use -> execution and library

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers."""
        values = asdict(self)
        return {**values, values.pop("batch_key"): values.pop("batch")}

    def table(self) -> Table:
        """Return the table of ``bench train``."""
        return Table(
            f"{self.recipe} on {self.device}, {self.threads} threads of {self.processor}, {self.precision}; "
            f"{self.real_share:.1%} of the positions are real tokens; maps go by {self._taken}",
            ("model", "parameters", "ms a step", "target tokens/s", f"speed / {self.baseline}", "products allow"),
            [
                (
                    r.candidate,
                    f"{r.parameters:,}",
                    r.step_seconds.milliseconds,
                    f"{r.target_tokens_per_second:,.0f}",
                    r.speed,
                    f"{r.allowed:.2f}",
                )
                for r in self.rows
            ],
        )

    @property
    def _taken(self) -> str:
        counts = Counter(self.choices.values())
        return ", ".join(f"{name} ({count})" for name, count in counts.most_common()) or "torch's own library"


def bench_training(
    recipe: Recipe, data: Path, *, batches: int = 4, rounds: int = 10, baseline: str = "dense"
) -> TrainingBench:
    """Measure training steps on a recipe's prepared data.

    Args:
        recipe: the experiment; its dense twin is the same with ``algebra: real``.
        data: the data folder.
        batches: how many different batches are cycled through.
        rounds: samples of each candidate; a sample is one step on each batch.
        baseline: ``dense``; of a composed model also ``base``, its dense twin without compositions; or another
            candidate.

    Raises:
        DataError: the data is not prepared.
        UserError: there is no such candidate.
    """
    device = pick_device(recipe.training.device)
    set_threads(recipe.training.threads)
    kind, training = kind_of(recipe), recipe.training
    task = kind.open(recipe, data)
    sample = [task.collate(rows).to(device) for rows in task.plan(0)[:batches]]
    candidates = _candidates(kind, recipe, task, data, device)
    check_known("candidate", baseline, list(candidates))
    steps = {name: _stepper(candidate, training, sample, device) for name, candidate in candidates.items()}
    with taken_from({}) as table, watched("training steps", len(steps), rounds) as advance:
        timings = compare(steps, rounds=rounds, baseline=baseline, warmup=1, device=device, advance=advance)
    items = sum(batch.target_tokens for batch in sample)
    products = {name: multiplications(step) / len(sample) for name, step in steps.items()}
    return TrainingBench(
        recipe.name,
        str(device),
        processor(),
        torch.get_num_threads(),
        training.precision,
        len(sample),
        training.batch_key,
        getattr(training, training.batch_key),
        kind.real_share(task),
        baseline,
        [
            _row(candidates[name].model, timing, items, len(sample), products[name], products[baseline])
            for name, timing in timings.items()
        ],
        as_text(table),
    )


def _candidates(
    kind: TaskKind[Any], recipe: Recipe, task: Task, data: Path, device: torch.device
) -> dict[str, Candidate]:
    """Return the candidates by name, the dense twin first."""

    def loss(model: nn.Module, batch: Any) -> Tensor:
        total, items = task.loss(model, batch)
        return total / items

    recipes = variants_of(recipe)
    found = {name: Candidate(kind.open(each, data).build_model(device), loss) for name, each in recipes.items()}
    return found | dict(kind.candidates(task, device))


def variants_of(recipe: R) -> dict[str, R]:
    """Return the variants of a recipe that are measured: the dense twin first, the base where it composes."""
    found = {"dense": recipe.dense_twin}
    if recipe.dense_twin.base is not None:
        found["base"] = recipe.dense_twin.base
    if recipe.model.algebra != "real":
        if recipe.base is not None:
            found[f"base {recipe.base.variant}"] = recipe.base
        found[recipe.variant] = recipe
    return found


def _stepper(candidate: Candidate, training: TrainingSection, sample: Sequence[Any], device: torch.device) -> Step:
    """Return a function that trains one step on each batch of the sample."""
    model, autocast = candidate.model, build_autocast(device, training.precision)
    optimiser = candidate.optimiser or build_optimiser(model, training)
    parameters = [p for p in model.parameters() if p.requires_grad]
    model.train()

    def steps() -> None:
        for batch in sample:
            with autocast():
                value = candidate.loss(model, batch)
            value.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, training.clip or torch.inf)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return steps


def _row(model: nn.Module, timing: Timing, items: int, steps: int, products: float, baseline: float) -> TrainingRow:
    return TrainingRow(
        timing.name,
        sum(p.numel() for p in model.parameters() if p.requires_grad),
        _scaled(timing.seconds, 1 / steps),
        items / timing.seconds.median,
        timing.ratio.inverse,
        round(products),
        baseline / products,
    )


def _scaled(spread: Spread, factor: float) -> Spread:
    return Spread(spread.median * factor, spread.lower * factor, spread.upper * factor)
