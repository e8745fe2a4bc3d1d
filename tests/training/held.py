"""What a process holds while a sharded model's checkpoints are written, read and averaged: a job for several."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from phmctl import checkpoints
from phmctl.runs import Run
from phmctl.training import averaging, wrapping
from phmctl.training.processes import Processes
from phmctl.training.train import train_task
from phmctl.training.trainer import Trainer
from tests.training.fake import FakeTask, make_recipe

LAYERS, WIDTH = 12, 512  # weights of 1 MiB each; the moments have twice as many


class Deep(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(6, WIDTH)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
        self.last = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x)
        return self.last(x)


class DeepTask(FakeTask):
    def build_model(self, device: torch.device) -> nn.Module:
        return Deep().to(device)


def anonymous() -> float:
    """Return the MiB that this process holds, without the pages of files that it has mapped."""
    status = Path("/proc/self/status")
    found = re.search(r"RssAnon:\s+(\d+)", status.read_text() if status.exists() else "")
    return int(found[1]) / 1024 if found else 0.0


class Peaks:
    """What came on top within calls: sampled at the end of others within them."""

    def __init__(self) -> None:
        self.found: dict[str, float] = {}
        self._name, self._begin = "", 0.0

    def within(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            self._name, self._begin = name, anonymous()
            return call(*arguments, **named)

        return wrapped

    def at(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **named: Any) -> Any:
            result = call(*arguments, **named)
            self.found[self._name] = max(self.found.get(self._name, 0.0), anonymous() - self._begin)
            return result

        return wrapped


def hold(root: Path, processes: Processes, old: Path | None = None, steps: int = 4) -> dict[str, float]:
    """Train in shards; return what came on top while saving, telling and averaging, in MiB."""
    peaks = Peaks()
    recipe = make_recipe(steps=steps, save_every=2, validate_every=4, sharding="full", average=2)
    with (
        patch.object(Trainer, "save", peaks.within("saving", Trainer.save)),
        patch.object(Processes, "tell_tensors", peaks.within("telling", Processes.tell_tensors)),
        patch("phmctl.training.train.average_checkpoints", peaks.within("averaging", averaging.average_checkpoints)),
        patch.object(wrapping, "_whole", peaks.at(wrapping._whole)),
        patch.object(checkpoints, "_bytes", peaks.at(checkpoints._bytes)),
        patch.object(Trainer, "place", peaks.at(Trainer.place)),
    ):
        continued = Run.open(old) if old is not None and processes.leads else None
        train_task(DeepTask(), recipe, root, quiet=True, old=continued, processes=processes)
    return peaks.found
