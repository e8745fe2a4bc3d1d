"""The contract between task and trainer: the trainer knows batches, losses and scores, never what they are about."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from phmctl.runs import Run

Autocast = Callable[[], AbstractContextManager[Any]]


class TrainingBatch(Protocol):
    """What the trainer asks of a batch."""

    @property
    def target_tokens(self) -> int:
        """How many items the batch's loss sums over, known without asking the device."""
        ...

    def to(self, device: torch.device) -> "TrainingBatch":
        """Return the batch on a device."""
        ...


class Task(Protocol):
    """Binds data, model, loss and metric."""

    def build_model(self, device: torch.device) -> nn.Module:
        """Build the untrained model."""
        ...

    def batches(self, epoch: int, start: int = 0) -> Iterator[Any]:
        """Yield an epoch's training batches from the `start`-th; the same for the same epoch and seed."""
        ...

    def loss(self, model: nn.Module, batch: Any) -> tuple[Tensor, int]:
        """Return the loss summed over the batch's items, and their number."""
        ...

    def validate(self, model: nn.Module, autocast: Autocast) -> dict[str, float]:
        """Return the validation metrics, ``loss`` (a mean) among them."""
        ...

    def score(self, metrics: Mapping[str, float]) -> float:
        """Return the number by which the best checkpoint is chosen; higher is better."""
        ...

    def check_data(self) -> None:
        """Refuse (DataError) data that no training can begin or be validated with; called before a run is made."""
        ...

    def check_run(self, run: Run) -> None:
        """Refuse (RunError) to continue a run that was trained on other data."""
        ...

    def furnish(self, run: Run) -> None:
        """Write into a new run what using it elsewhere needs: tokenizers, raw evaluation text."""
        ...
