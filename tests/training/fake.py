"""A task small enough to train in a blink: which of four classes a noisy vector belongs to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.processes import Processes
from phmctl.recipe.models import TransformerSection
from phmctl.recipe.schema import ParallelSection, TranslationRecipe, TranslationTraining
from phmctl.tasks.base import Cost, Rows, Task

BATCHES_PER_EPOCH = 7


def make_recipe(**training: Any) -> TranslationRecipe:
    settings = {
        "steps": 20,
        "learning_rate": 0.01,
        "schedule": "constant",
        "warmup": 0,
        "log_every": 5,
        "validate_every": 10,
        "save_every": 5,
        "device": "cpu",
    }
    return TranslationRecipe(
        name="fake",
        data=ParallelSection(card="none"),
        model=TransformerSection(algebra="phm", n=4),
        training=TranslationTraining(**(settings | training)),
    )


@dataclass(frozen=True)
class FakeBatch:
    inputs: Tensor  # (B, 6)
    labels: Tensor  # (B,)
    target_tokens: int

    def to(self, device: torch.device) -> "FakeBatch":
        if device.type == "cpu":
            return self
        inputs, labels = (t.pin_memory().to(device, non_blocking=True) for t in (self.inputs, self.labels))
        return FakeBatch(inputs, labels, self.target_tokens)


class FakeModel(nn.Module):
    """Two layers with dropout between, and a third that shares the second's weight."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.second = nn.Linear(8, 8)
        self.shared = self.second
        self.dropout = nn.Dropout(dropout)
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(torch.relu(self.first(x)))
        hidden = self.shared(torch.relu(self.second(hidden)))
        return self.last(hidden)


class FakeTask(Task):
    """Batches depend on (epoch, position) alone. `poison` puts a NaN into the batch of that (epoch, position).

    Row 100·(1000·epoch + position) + i is the i-th of a batch.
    """

    least_score = -math.inf

    def __init__(self, rows: int = 8, poison: tuple[int, int] | None = None, dropout: float = 0.3) -> None:
        self.rows, self.poison, self.dropout = rows, poison, dropout
        self.validations = 0

    def build_model(self, device: torch.device) -> nn.Module:
        return FakeModel(self.dropout).to(device)

    def plan(self, epoch: int) -> list[Rows]:
        positions = range(BATCHES_PER_EPOCH)
        return [100 * (1000 * epoch + position) + np.arange(self.rows + position % 3) for position in positions]

    def cost(self, rows: Rows) -> Cost:
        return Cost(len(rows), len(rows))

    def collate(self, rows: Rows) -> FakeBatch:
        batch, places = int(rows[0]) // 100, rows % 100
        batch_of_all = self.make(batch, self.rows + 2)
        if self.poison == divmod(batch, 1000):
            batch_of_all.inputs[0, 0] = float("nan")
        return FakeBatch(batch_of_all.inputs[places], batch_of_all.labels[places], len(rows))

    @staticmethod
    def make(seed: int, rows: int) -> FakeBatch:
        generator = torch.Generator().manual_seed(seed)
        labels = torch.randint(0, 4, (rows,), generator=generator)
        inputs = F.one_hot(labels, 6) + 0.3 * torch.randn(rows, 6, generator=generator)
        return FakeBatch(inputs, labels, rows)

    def loss(self, model: nn.Module, batch: FakeBatch) -> tuple[Tensor, int]:
        return F.cross_entropy(model(batch.inputs), batch.labels, reduction="sum"), batch.target_tokens

    @torch.no_grad()
    def validate(self, model: nn.Module, autocast: Any, processes: Processes) -> dict[str, float]:
        self.validations += 1
        batch = self.make(999_999, 64)
        return {"loss": F.cross_entropy(model(batch.inputs), batch.labels).item()}

    def score(self, metrics: Mapping[str, float]) -> float:
        return -metrics["loss"]

    def furnish(self, run: Any) -> None:
        run.text_folder.mkdir()
