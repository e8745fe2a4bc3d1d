"""Trainings of the fake task in a temporary folder."""

from collections.abc import Callable
from pathlib import Path

import pytest

from phmctl.training.train import TrainingResult, train_task
from tests.tasks.classification.conftest import labelled_data, small
from tests.training.fake import FakeTask, make_recipe

__all__ = ["labelled_data", "small"]

Fit = Callable[..., TrainingResult]


@pytest.fixture
def fit(tmp_path: Path) -> Fit:
    """Train the fake task: ``fit(steps=20, task=…, root=…, old=…)``; other arguments go into the recipe."""

    def run(task: FakeTask | None = None, root: Path = tmp_path, old=None, checkpoint: str = "last", **training):
        recipe = make_recipe(**training)
        return train_task(task or FakeTask(), recipe, root, old=old, checkpoint=checkpoint)

    return run
