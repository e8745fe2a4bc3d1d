"""Learning a rule as a task for the trainer: examples made on the fly, mean squared error."""

import math
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.assembly import build_rule_model
from phmctl.data.batches import RandomNumbers
from phmctl.errors import RunError
from phmctl.models.small import RuleModel
from phmctl.recipe.schema import RuleRecipe
from phmctl.runs import Run
from phmctl.tasks.base import ALONE, Autocast, Cost, Rows, Share
from phmctl.tasks.rule_learning.truth import (
    EVALUATION_SAMPLES,
    TRUTH,
    Samples,
    draw_samples,
    draw_truth,
    read_truth,
    write_truth,
)


@dataclass(frozen=True)
class SampleBatch:
    """Some examples."""

    inputs: Tensor  # (B, d)
    targets: Tensor  # (B, d)

    @property
    def target_tokens(self) -> int:
        return self.targets.numel()

    def to(self, device: torch.device) -> "SampleBatch":
        return SampleBatch(self.inputs.to(device), self.targets.to(device))


class RuleTask:
    """A recipe's layer, and examples of the true map that it is to find."""

    unit = "numbers"
    least_score = -math.inf

    def __init__(self, recipe: RuleRecipe) -> None:
        self.recipe = recipe
        self.truth = draw_truth(recipe.data)
        self._train = draw_samples(self.truth, "train", recipe.data.samples, recipe.data.seed)
        self._valid = draw_samples(self.truth, "valid", EVALUATION_SAMPLES, recipe.data.seed)

    def build_model(self, device: torch.device | str | None = None) -> RuleModel:
        return build_model(self.recipe, device)

    def plan(self, epoch: int) -> list[Rows]:
        settings = self.recipe.training
        count, size = len(self._train.inputs), settings.batch_size
        order = RandomNumbers(settings.seed, epoch).permutation(count)  # (N,)
        return [order[begin : begin + size] for begin in range(0, count, size)]

    def cost(self, rows: Rows) -> Cost:
        numbers = len(rows) * self._train.targets.shape[1]
        return Cost(numbers, numbers)

    def collate(self, rows: Rows) -> SampleBatch:
        chosen = torch.from_numpy(rows)  # (B,)
        return SampleBatch(self._train.inputs[chosen], self._train.targets[chosen])

    def loss(self, model: nn.Module, batch: SampleBatch) -> tuple[Tensor, int]:
        return model(batch.inputs, batch.targets), batch.target_tokens

    @torch.no_grad()
    def validate(self, model: nn.Module, autocast: Autocast = nullcontext, share: Share = ALONE) -> dict[str, float]:
        """Return ``loss``, the mean squared error of a number, and ``map_error``, that of H relative to the true H.

        The second compares two maps, which each process does itself.
        """
        size, count = self.recipe.training.batch_size, len(self._valid.inputs)
        total = torch.zeros((), dtype=torch.float64)
        for begin in share.mine(range(0, count, size)):
            part = Samples(*(tensor[begin : begin + size] for tensor in self._valid))
            with autocast():
                total += mean_squared_error(model, part) * part.targets.numel()
        loss = share.total(total.to(next(model.parameters()).device)).item() / self._valid.targets.numel()
        return {"loss": loss, "map_error": relative_error(materialised(model), self.truth.H)}

    def score(self, metrics: Mapping[str, float]) -> float:
        return -metrics["loss"]

    def check_data(self) -> None:
        """Whatever a recipe asks for can be drawn."""

    def check_run(self, run: Run) -> None:
        if not all(map(torch.equal, read_truth(run), self.truth)):
            raise RunError(
                f"{run.folder / TRUTH} is not the map that its recipe draws here (another version of torch?); "
                "leave --resume out to start a new run"
            )

    def check_vocabulary(self, run: Run) -> None:
        """Numbers mean the same everywhere."""

    def furnish(self, run: Run) -> None:
        write_truth(run, self.recipe.data, self.truth)


def build_model(recipe: RuleRecipe, device: torch.device | str | None = None) -> RuleModel:
    return build_rule_model(recipe.model, recipe.data.dims * recipe.data.components, device)


@torch.no_grad()
def mean_squared_error(model: nn.Module, samples: Samples) -> float:
    """Return the mean over all numbers of the targets of the squared error of the model's outputs."""
    device = next(model.parameters()).device
    outputs = model(samples.inputs.to(device))  # (N, d)
    return F.mse_loss(outputs.float(), samples.targets.to(device)).item()


def materialised(model: nn.Module) -> Tensor:
    """Return the H of a rule model, in float64 on the CPU. (d, d)."""
    weight: Tensor = model.product.weight  # type: ignore[union-attr, assignment]
    return weight.detach().to("cpu", torch.float64)


def relative_error(found: Tensor, truth: Tensor) -> float:
    """Return ‖found − truth‖ / ‖truth‖ in Frobenius norms."""
    return float((found - truth).norm() / truth.norm())
