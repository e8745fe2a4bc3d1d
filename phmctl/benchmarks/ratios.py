"""Measure speed as a ratio to a baseline, from rounds in which all candidates take turns."""

import platform
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.console import Table, progress
from phmctl.devices import processor_name
from phmctl.timing import alternate


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

    def divided(self, divisor: float) -> "Spread":
        return Spread(self.median / divisor, self.low / divisor, self.high / divisor)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class Timing:
    """Seconds per call of a candidate, and their ratios to the baseline's seconds in the same round."""

    seconds: Spread
    ratio: Spread


@dataclass(frozen=True)
class Bench:
    """The result of a benchmark: a title, values common to all rows, and rows with equal keys."""

    title: str
    about: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return dictionaries and numbers; a spread becomes `median`, `low` and `high`."""
        return {**self.about, "rows": asdict(self)["rows"]}

    def table(self) -> Table:
        """Return the rows as a table: medians of seconds in milliseconds, ratios with their range."""
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


def compare(
    description: str,
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    baseline: str | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Timing]:
    """Time calls in turns, with a progress bar on a terminal; the default baseline is the first call."""
    with progress(f"measuring {description}", len(calls) * (rounds + 1), plain=False) as advance:
        samples = alternate(calls, rounds=rounds, device=device, advance=advance)
    baseline_seconds = samples[baseline or next(iter(calls))]
    timings = {}
    for name, seconds in samples.items():
        ratios = [sample / reference for sample, reference in zip(seconds, baseline_seconds, strict=True)]
        timings[name] = Timing(Spread.of(seconds), Spread.of(ratios))
    return timings


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
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
    """Return the number of trainable parameters."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
