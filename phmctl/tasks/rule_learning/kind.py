"""Learning a rule, as the commands know it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from phmctl.assembly import build_rule_model
from phmctl.errors import UserError
from phmctl.models.small import RuleModel
from phmctl.recipe.schema import RuleModelSection, RuleRecipe
from phmctl.runs import Run
from phmctl.tasks.answers import Metric
from phmctl.tasks.base import Asked, Sizes, TaskKind, TypicalBatch
from phmctl.tasks.rule_learning.curve import CURVE, draw_curve
from phmctl.tasks.rule_learning.evaluation import RuleEvaluation, evaluate_rule
from phmctl.tasks.rule_learning.task import RuleTask


class RuleKind(TaskKind[RuleRecipe]):
    """Examples made on the fly, a map and a rule to compare with the true ones. No text, and nothing to prepare."""

    recipe = RuleRecipe
    commands = ("train", "eval", "count-params", "bench train")
    metrics = (Metric("map_error", higher=False), Metric("loss", higher=False))

    def open(self, recipe: RuleRecipe, data: Path) -> RuleTask:
        """Draw a recipe's true map and examples; the data folder is not looked at."""
        return RuleTask(recipe)

    def sizes(self, recipe: RuleRecipe, data: Path | None = None) -> Sizes:
        """Return ``features``, the real numbers in and out."""
        features = recipe.data.dims * recipe.data.components
        note = f"features: {features} = {recipe.data.dims} × {recipe.data.components}"
        return Sizes({"features": features}, note, trained=True)

    def build(
        self, settings: RuleModelSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> RuleModel:
        """Build the one layer."""
        return build_rule_model(settings, sizes["features"], device)

    def typical_batch(self, recipe: RuleRecipe) -> TypicalBatch:
        """Return a batch of examples."""
        rows, features = recipe.training.batch_size, recipe.data.dims * recipe.data.components

        def loss(model: nn.Module) -> Tensor:
            x = torch.ones(rows, features)  # (B, d)
            return F.mse_loss(model(x), x, reduction="sum")

        return TypicalBatch(rows, 1, loss, f"examples of {features} numbers in and out")

    def scored(self, asked: Asked) -> RuleEvaluation:
        """Compare the learned map and rule with the true ones."""
        if asked.against is not None:
            raise UserError("--against: a rule is compared with the true one, not with another run's; leave it out")
        return evaluate_rule(asked.run, asked.split, asked.checkpoint, device=asked.device)

    def conclude(self, run: Run, metrics: Iterable[Mapping[str, Any]]) -> None:
        """Draw the loss curve into the run's results."""
        draw_curve(run.results_folder / CURVE, run.name, metrics)


KIND = RuleKind()
