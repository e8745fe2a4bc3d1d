"""The task ``rule``: a PHM layer learns a hypercomplex product or a rotation from examples, which need no data."""

from __future__ import annotations  # torch is imported by the functions that need it

from pathlib import Path
from typing import TYPE_CHECKING

from phmctl.recipe.schema import RuleRecipe
from phmctl.runs import AUTO, Run
from phmctl.tasks.base import Metric, Sizes, TaskSpec, Trains

if TYPE_CHECKING:
    from phmctl.tasks.rule_training import RuleEvaluation, RuleTask


def sizes(recipe: RuleRecipe, data: Path | None = None) -> Sizes:
    features = recipe.data.dims * recipe.data.components
    note = f"features: {features} = {recipe.data.dims} × {recipe.data.components}"
    return Sizes({"features": features}, note, trained=True)


def open_data(recipe: RuleRecipe, data: Path) -> RuleTask:
    from phmctl.tasks.rule_training import RuleTask

    return RuleTask(recipe)


def evaluate(run: Run, split: str = "test", checkpoint: str = AUTO, device: str = "auto") -> RuleEvaluation:
    from phmctl.tasks.rule_training import evaluate_rule

    return evaluate_rule(run, split, checkpoint, device)


RULE = TaskSpec(
    name="rule",
    commands=("train", "eval", "count-params", "bench train"),
    sizes=sizes,
    trains=Trains(
        open=open_data,
        evaluate=evaluate,
        metrics=(Metric("map_error", higher=False), Metric("loss", higher=False)),
    ),
)
