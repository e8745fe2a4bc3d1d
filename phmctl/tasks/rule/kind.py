"""The task ``rule``: examples are drawn when a training starts; the learned map and rule are compared with the true."""

from __future__ import annotations  # torch is imported by the methods that need it

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from phmctl.recipe.models import RuleModelSection
from phmctl.recipe.schema import RuleRecipe
from phmctl.tasks.answers import Metric
from phmctl.tasks.base import ScoreRequest, Sizes, TrainedKind

if TYPE_CHECKING:
    import torch

    from phmctl.models.classifiers import RuleModel
    from phmctl.tasks.rule.task import RuleEvaluation, RuleTask


class RuleKind(TrainedKind[RuleRecipe]):
    """A PHM layer that learns a hypercomplex product or a rotation. No text, and no data to prepare."""

    recipe = RuleRecipe
    metrics = (Metric("map_error", higher=False), Metric("loss", higher=False))

    def open(self, recipe: RuleRecipe, data: Path) -> RuleTask:
        from phmctl.tasks.rule.task import RuleTask

        return RuleTask(recipe)

    def sizes(self, recipe: RuleRecipe, data: Path | None = None) -> Sizes:
        features = recipe.data.dims * recipe.data.components
        note = f"features: {features} = {recipe.data.dims} × {recipe.data.components}"
        return Sizes({"features": features}, note, trained=True)

    def build(
        self, settings: RuleModelSection, sizes: Mapping[str, int], device: torch.device | str | None = None
    ) -> RuleModel:
        from phmctl.tasks.rule.task import build_rule_model

        return build_rule_model(settings, sizes["features"], device)

    def evaluate(self, request: ScoreRequest) -> RuleEvaluation:
        from phmctl.tasks.rule.task import evaluate

        return evaluate(request)
