"""Learning a rule, as the commands know it."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch

from phmctl.assembly import build_rule_model
from phmctl.errors import UserError
from phmctl.models.small import RuleModel
from phmctl.recipe.schema import RuleModelSection, RuleRecipe
from phmctl.runs import Run
from phmctl.tasks.answers import Metric
from phmctl.tasks.base import Asked, Sizes, TaskKind
from phmctl.tasks.rule_learning.evaluation import CURVE, RuleEvaluation, draw_curve, evaluate_rule
from phmctl.tasks.rule_learning.task import RuleTask


class RuleKind(TaskKind[RuleRecipe]):
    """Examples made on the fly, a map and a rule to compare with the true ones. No text, and nothing to prepare."""

    recipe = RuleRecipe
    commands = ("train", "eval", "count-params", "bench train")
    metrics = (Metric("map_error", higher=False), Metric("loss", higher=False))

    def open(self, recipe: RuleRecipe, data: Path) -> RuleTask:
        return RuleTask(recipe)

    def sizes(self, recipe: RuleRecipe, data: Path | None = None) -> Sizes:
        features = recipe.data.dims * recipe.data.components
        note = f"features: {features} = {recipe.data.dims} × {recipe.data.components}"
        return Sizes({"features": features}, note, trained=True)

    def build(
        self, settings: RuleModelSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> RuleModel:
        return build_rule_model(settings, sizes["features"], device)

    def scored(self, asked: Asked) -> RuleEvaluation:
        if asked.against is not None:
            raise UserError("--against: a rule is compared with the true one, not with another run's; leave it out")
        return evaluate_rule(asked.run, asked.split, asked.checkpoint, device=asked.device)

    def conclude(self, run: Run, metrics: Iterable[Mapping[str, Any]]) -> None:
        """Draw the loss curve into the run's results."""
        draw_curve(run.results_folder / CURVE, run.name, metrics)


KIND = RuleKind()
