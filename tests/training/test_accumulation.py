"""Accumulation on the real model: the step's gradient does not depend on how its sentences are cut into batches."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from phmctl.data.batches import Batch, collate
from phmctl.data.prepared.folder import PreparedData
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.tasks.translation.task import TranslationTask
from phmctl.training.progress import MetricsLog, ProgressLine
from phmctl.training.trainer import Trainer

SIZES = (1, 9, 4, 2, 8)  # sentences a micro-batch


class DoubleTask(TranslationTask):
    """The Transformer and its vocabulary loss in float64."""

    def build_model(self, device: torch.device | str | None = None) -> nn.Module:
        return super().build_model(device).double()


@pytest.fixture(params=["separate", "model"])
def trainer(request: pytest.FixtureRequest, tiny_recipe: Recipe, miniature_data: Path, tmp_path: Path) -> Trainer:
    model = tiny_recipe.model.model_copy(update={"dropout": 0.0, "rules": request.param})
    training = tiny_recipe.training.model_copy(update={"label_smoothing": 0.1, "device": "cpu"})
    recipe = tiny_recipe.model_copy(update={"model": model, "training": training})
    task = DoubleTask(recipe, PreparedData.find(recipe.data, miniature_data))
    run = Run.create(tmp_path, recipe)
    log = MetricsLog(run.metrics_path)
    return Trainer(task, run, torch.device("cpu"), log, ProgressLine(1, 0, quiet=True))


def gradient(trainer: Trainer, batches: list[Batch]) -> torch.Tensor:
    """Return the step's gradient of all parameters as one vector."""
    trainer.optimiser.zero_grad()
    tokens = sum(batch.target_tokens for batch in batches)
    for batch in batches:
        trainer._backward(trainer.model, batch, tokens)
    return torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()])


def test_a_step_of_unequal_batches_has_the_gradient_of_the_one_big_batch(trainer: Trainer) -> None:
    split = trainer.task.prepared.split("train")
    rows = np.argsort(split.target.lengths, kind="stable")[:: len(split) // sum(SIZES)][: sum(SIZES)]
    parts = [collate(split, part) for part in np.split(rows, np.cumsum(SIZES)[:-1])]
    assert len({batch.target_tokens / len(batch.indices) for batch in parts}) == len(SIZES)
    whole = gradient(trainer, [collate(split, rows)])
    accumulated = gradient(trainer, parts)
    assert whole.dtype == torch.float64
    assert whole.norm() > 1e-3
    assert (accumulated - whole).norm() <= 1e-10 * whole.norm()


def test_the_mean_of_the_batches_means_would_be_another(trainer: Trainer) -> None:
    """That the test above can fail: one batch of few tokens must not weigh as much as one of many."""
    split = trainer.task.prepared.split("train")
    short, long = (collate(split, rows) for rows in (np.arange(1), np.arange(1, 20)))
    whole = gradient(trainer, [collate(split, np.arange(20))])
    means = sum(gradient(trainer, [batch]) for batch in (short, long)) / 2
    assert (means - whole).norm() > 1e-3 * whole.norm()
