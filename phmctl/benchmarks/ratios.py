"""Speed as a ratio to a baseline, taken within a round of calls in turns."""

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

Forward = Callable[[Tensor], Tensor]  # from the input to the output that is measured


@dataclass(frozen=True)
class Spread:
    """The median, the least and the greatest of the samples."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, samples: Sequence[float]) -> "Spread":
        return cls(statistics.median(samples), min(samples), max(samples))

    @property
    def inverse(self) -> "Spread":
        """The spread of one over the samples: a ratio of seconds becomes a ratio of speeds."""
        return Spread(1 / self.median, 1 / self.high, 1 / self.low)

    def __str__(self) -> str:
        return f"{self.median:.2f} ({self.low:.2f}–{self.high:.2f})"


@dataclass(frozen=True)
class Timing:
    """One candidate: the seconds of a call, and their ratio to the baseline's in the same round."""

    seconds: Spread
    ratio: Spread


@dataclass(frozen=True)
class Bench:
    """Figures: a title, what holds for all rows, and the rows; all rows have the same keys."""

    title: str
    about: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]

    def as_json(self) -> dict[str, Any]:
        """Return plain dictionaries and numbers; a spread is `median`, `low` and `high`."""
        return {**self.about, "rows": asdict(self)["rows"]}

    def table(self) -> Table:
        """Return the rows as a table: of seconds the medians in milliseconds, of ratios the range too."""
        where = f"{self.about['threads']} threads of {self.about['processor']} (median, least–greatest)"
        keys = [key for key, value in self.rows[0].items() if not isinstance(value, Mapping)]
        columns = [key.replace("seconds", "ms").replace("_", " ") for key in keys]
        cells = [[_cell(row[key], seconds=key.endswith("seconds")) for key in keys] for row in self.rows]
        text = [index for index, key in enumerate(keys) if isinstance(self.rows[0][key], str)]
        return Table(f"{self.title}, {where}", columns, cells, text=text)


def _cell(value: object, *, seconds: bool) -> str:
    if isinstance(value, Spread):
        return f"{1e3 * value.median:.2f}" if seconds else str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}" if isinstance(value, float) else str(value)


def compare(
    what: str,
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    baseline: str | None = None,
    device: torch.device | str = "cpu",
) -> dict[str, Timing]:
    """Time candidates in turns, with a bar on a terminal; ratios are to the `baseline`'s, or else the first one's."""
    with progress(f"measuring {what}", len(calls) * (rounds + 1), plain=False) as advance:
        samples = alternate(calls, rounds=rounds, device=device, advance=advance)
    base = samples[baseline or next(iter(calls))]
    return {
        name: Timing(Spread.of(mine), Spread.of([one / other for one, other in zip(mine, base, strict=True)]))
        for name, mine in samples.items()
    }


def machine(device: torch.device | str = "cpu") -> dict[str, Any]:
    """Return what speeds depend on: device, processor (of a GPU its name), threads, torch's version."""
    if torch.device(device).type == "cuda":
        processor = torch.cuda.get_device_name(device)
    else:
        processor = f"{processor_name() or platform.machine()} ({torch.backends.cpu.get_cpu_capability()})"
    threads = torch.get_num_threads()
    return {"device": str(device), "processor": processor, "threads": threads, "torch": torch.__version__}


def training_call(module: nn.Module, forward: Forward, x: Tensor) -> Callable[[], object]:
    """Return a forward and backward pass; the module goes into training mode.

    The input's gradient is computed too, as in the middle of a model.
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
    return sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
