"""The ``bench`` commands: speed as a ratio to a baseline, from rounds in which all candidates take turns.

- ``bench layer`` compares PHM layers with ``nn.Linear``.
- ``bench train`` compares a recipe's model with the dense twin, on the recipe's prepared data. A step is the trainer's:
  the loss of a batch, the backward pass, the gradient norm and the update. Decoding has no ratio, because a dense copy
  of the model decodes.

Ratios of layers are of seconds: below 1 is faster. Speeds of models are of tokens: above 1 is faster.
"""

import itertools
import math
import platform
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.attention import sdpa_kernel
from torch.optim import Optimizer

from phmctl.console import Table, progress
from phmctl.data.prepared import data_root
from phmctl.devices import isolated, pick_device, processor_name
from phmctl.errors import UserError, check_known
from phmctl.nn.linear import PHMLinear
from phmctl.nn.step import Leaves
from phmctl.recipe.schema import Recipe, TrainingSection
from phmctl.tasks import trains
from phmctl.tasks.base import Task
from phmctl.threads import set_threads
from phmctl.training.optimiser import build_optimiser
from phmctl.training.trainer import ATTENTION, build_autocast

R = TypeVar("R", bound=Recipe)
_DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SAMPLE_SECONDS = 0.002  # shorter calls are repeated
_TIMED_BATCHES = 8  # evenly spaced over an epoch, because batches differ in length


@dataclass(frozen=True)
class Spread:
    """Median, minimum and maximum of some samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        return cls(statistics.median(samples), min(samples), max(samples))

    @property
    def inverse(self) -> "Spread":
        """The spread of the reciprocals, which turns ratios of seconds into ratios of speeds."""
        return Spread(1 / self.median, 1 / self.high, 1 / self.low)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class Timing:
    """Seconds per call of a candidate, and ratios to the baseline's seconds in the same round."""

    seconds: Spread
    ratio: Spread


@dataclass(frozen=True)
class Bench:
    """The result of a benchmark: a title, values common to all rows, and rows with equal keys."""

    title: str
    about: Mapping[str, object]
    rows: Sequence[Mapping[str, object]]

    def as_json(self) -> dict[str, object]:
        """Return dictionaries and numbers. A spread becomes `median`, `low` and `high`."""
        return {**self.about, "rows": asdict(self)["rows"]}

    def table(self) -> Table:
        """Return the rows as a table: medians of seconds in milliseconds, ratios with the range."""
        first = self.rows[0]
        columns = [key.replace("seconds", "ms").replace("_", " ") for key in first]
        cells = [[_cell(key, value) for key, value in row.items()] for row in self.rows]
        text = [index for index, value in enumerate(first.values()) if isinstance(value, str)]
        machine = f"{self.about['threads']} threads of {self.about['processor']}"
        return Table(f"{self.title}, {machine} (median, least–greatest)", columns, cells, text=text)


def _cell(key: str, value: object) -> str:
    if isinstance(value, Spread) and key.endswith("seconds"):
        return f"{1e3 * value.median:.2f}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.2f}"
    return str(value)


def time_in_turns(
    description: str, calls: Mapping[str, Callable[[], object]], *, rounds: int, device: torch.device | str = "cpu"
) -> dict[str, Timing]:
    """Time calls in turns, with a progress bar on a terminal. The ratios are to the first call.

    Every round measures each call once and starts with another call than the round before, so that a drift of the
    machine's speed affects all of them equally. Before the first sample each is called once or twice.
    """
    names, repeats = list(calls), {}
    samples: dict[str, list[float]] = {name: [] for name in names}
    with progress(f"measuring {description}", len(calls) * (rounds + 1), plain=False) as advance:
        for name, call in calls.items():
            first = mean_seconds(call, 1, device)
            warm = min(first, mean_seconds(call, 1, device)) if first < _SAMPLE_SECONDS else first
            repeats[name] = max(1, math.ceil(_SAMPLE_SECONDS / max(warm, 1e-9)))
            advance(1)
        for index in range(rounds):
            turn = index % len(names)
            for name in names[turn:] + names[:turn]:
                samples[name].append(mean_seconds(calls[name], repeats[name], device))
                advance(1)
    timings = {}
    for name, seconds in samples.items():
        ratios = [sample / reference for sample, reference in zip(seconds, samples[names[0]], strict=True)]
        timings[name] = Timing(Spread.of(seconds), Spread.of(ratios))
    return timings


def mean_seconds(call: Callable[[], object], repeats: int, device: torch.device | str) -> float:
    """Return the mean seconds of `repeats` calls, from an idle device until the device has finished."""
    wait(device)
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    wait(device)
    return (time.perf_counter() - began) / repeats


def wait(device: torch.device | str) -> None:
    """Wait until a device has finished."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def machine(device: torch.device | str = "cpu") -> dict[str, object]:
    """Return the properties of this machine that speeds depend on: device, processor, threads, torch's version."""
    if torch.device(device).type == "cuda":
        processor = torch.cuda.get_device_name(device)
    else:
        processor = f"{processor_name() or platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"
    threads = torch.get_num_threads()
    return {"device": str(device), "processor": processor, "threads": threads, "torch": torch.__version__}


def training_call(module: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> Callable[[], object]:
    """Return a function that runs a forward and a backward pass, and put the module into training mode.

    The backward pass includes the input's gradient, as in the middle of a model.
    """
    module.train()
    leaf = x.clone().requires_grad_()
    gradient = torch.randn_like(forward(x))

    def step() -> None:
        module.zero_grad(set_to_none=True)
        leaf.grad = None
        forward(leaf).backward(gradient)  # type: ignore[no-untyped-call]

    return step


def parameters_of(module: nn.Module) -> int:
    """Return the number of trained parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)


def bench_layer(
    d: int,
    k: int,
    orders: Sequence[int],
    tokens: Sequence[int] = (16, 512, 4096),
    *,
    algebra: str = "phm",
    rank: int | None = None,
    dtype: str = "float32",
    device: str = "cpu",
    rounds: int = 20,
) -> Bench:
    """Time ``PHMLinear`` and ``nn.Linear``: forward and backward together, and the forward pass in training mode.

    The rows have each n, number of tokens, mode and execution. `ratio` divides PHM's seconds by ``nn.Linear``'s. A
    layer with a `rank` holds factors, and is timed in both executions. Raises UserError if an argument is invalid.
    """
    check_known("dtype", dtype, tuple(_DTYPES))
    if min(tokens, default=0) < 1:
        raise UserError(f"--tokens {','.join(map(str, tokens))}: each number of tokens must be at least 1")
    executions = ("dense",) if rank is None else ("dense", "rank")
    factory: dict[str, Any] = {"device": pick_device(device), "dtype": _DTYPES[dtype]}
    options: dict[str, Any] = {"algebra": algebra, "rank": rank}
    rows = []
    for n in orders:
        dense = nn.Linear(d, k, **factory)
        layers: dict[str, nn.Module] = {"nn.Linear": dense}
        for execution in executions:
            layers[execution] = PHMLinear(d, k, n=n, execution=execution, **options, **factory)
        for count, mode in itertools.product(tokens, ("forward+backward", "forward")):
            x = torch.randn(count, d, **factory)
            calls: dict[str, Callable[[], object]] = {}
            for name, layer in layers.items():
                calls[name] = partial(layer, x) if mode == "forward" else training_call(layer, layer, x)
            timings = time_in_turns(f"{d} → {k}, n = {n}", calls, rounds=rounds, device=factory["device"])
            for execution in executions:
                row = {
                    "n": n,
                    "tokens": count,
                    "mode": mode,
                    "execution": execution,
                    "torch_seconds": timings["nn.Linear"].seconds,
                    "phm_seconds": timings[execution].seconds,
                    "ratio": timings[execution].ratio,
                    "torch_parameters": parameters_of(dense),
                    "phm_parameters": parameters_of(layers[execution]),
                }
                rows.append(row)
    about = {"in_features": d, "out_features": k, **options, "dtype": dtype}
    return Bench(f"{d} → {k} against nn.Linear, {algebra}, {dtype}", {**about, **machine(factory["device"])}, rows)


def variants_of(recipe: R) -> dict[str, R]:
    """Return the recipes to compare, by name: the dense twin and the recipe."""
    models: dict[str, Any] = {"dense": recipe.model.dense_twin}
    if recipe.model.algebra != "real":
        models[recipe.model.variant] = recipe.model
    return {name: recipe.model_copy(update={"model": model}) for name, model in models.items()}


def seconds_per_step(task: Task, training: TrainingSection, device: torch.device) -> float:
    """Return the seconds that a step takes, timed on a model that is discarded."""
    with isolated(device, training.threads):
        plan = task.plan(0)
        timed = [plan[number * len(plan) // _TIMED_BATCHES] for number in range(_TIMED_BATCHES)]
        model = task.build_model(device)
        sample = [task.collate(rows).to(device) for rows in timed]
        steps = stepper(model, partial(mean_loss, task), training, sample, device)
        timing = time_in_turns("training steps", {"steps": steps}, rounds=3, device=device)["steps"]
        return timing.seconds.median / len(sample) * training.accumulate


def mean_loss(task: Task, model: nn.Module, batch: object) -> Tensor:
    total, count = task.loss(model, batch)
    return total / count


def stepper(
    model: nn.Module,
    loss: Callable[[nn.Module, object], Tensor],
    training: TrainingSection,
    sample: Sequence[object],
    device: torch.device,
    optimiser: Optimizer | None = None,
) -> Callable[[], object]:
    """Return a function that trains one step on each batch of a sample, compiled if ``training.compile`` is set."""
    called: Any = torch.compile(model) if training.compile else model
    autocast = build_autocast(device, training.precision)
    leaves, prepared = Leaves(model), autocast if training.compile else None
    optimiser = optimiser or build_optimiser(model, training)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    model.train()

    @sdpa_kernel(ATTENTION)
    def steps() -> None:
        for batch in sample:
            with leaves.active(prepared, passes=1):
                with autocast():
                    value = loss(called, batch)
                value.backward()  # type: ignore[no-untyped-call]
            torch.nn.utils.clip_grad_norm_(parameters, training.clip or torch.inf)
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)

    return steps


def bench_training(recipe: Recipe, data: str | Path | None = None, *, batches: int = 4, rounds: int = 10) -> Bench:
    """Time training steps on a recipe's prepared data. A sample is one step on each of the batches.

    `speed` divides a candidate's tokens per second by the dense twin's. Raises DataError if the data is not prepared.
    """
    data = data_root(data)
    training = recipe.training
    device = pick_device(training.device)
    set_threads(training.threads)
    task = trains(recipe).open(recipe, data)
    plan = task.plan(0)[:batches]
    sample = [task.collate(rows).to(device) for rows in plan]
    models: dict[str, nn.Module] = {}
    steps: dict[str, Callable[[], object]] = {}
    for name, variant in variants_of(recipe).items():
        models[name] = trains(variant).open(variant, data).build_model(device)
        steps[name] = stepper(models[name], partial(mean_loss, task), training, sample, device)
    timings = time_in_turns("training steps", steps, rounds=rounds, device=device)

    tokens = sum(task.cost(rows).tokens for rows in plan)
    rows = [
        {
            "candidate": name,
            "parameters": parameters_of(models[name]),
            "step_seconds": Spread(*(seconds / len(sample) for seconds in astuple(timing.seconds))),
            "tokens_per_second": round(tokens / timing.seconds.median, 1),
            "speed": timing.ratio.inverse,
        }
        for name, timing in timings.items()
    ]
    about = {"recipe": recipe.name, "precision": training.precision, "batches": len(sample)}
    about |= {training.batch_key: getattr(training, training.batch_key)}
    return Bench(f"{recipe.name}, {training.precision}, speed over dense", {**about, **machine(device)}, rows)
