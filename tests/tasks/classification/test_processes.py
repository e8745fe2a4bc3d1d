"""Classifiers on several processes."""

from collections.abc import Callable
from pathlib import Path

import torch

from phmctl.recipe.schema import ClassificationRecipe
from tests.training import jobs, together


def test_two_processes_train_what_one_trains(
    small: Callable[..., ClassificationRecipe], labelled_data: Path, tmp_path: Path
) -> None:
    """Dropout on, whole micro-batches for each."""
    common = ["training.accumulate=2", "model.dropout=0.1", "training.log_every=1"]
    recipes = [small("encoder", *common), small("lstm-pair", *common)]
    with torch.random.fork_rng():
        alone = [jobs.classify(labelled_data, tmp_path / "one", recipe) for recipe in recipes]
    wanted = [(jobs.classify, {"data": labelled_data, "root": tmp_path / "two", "recipe": each}) for each in recipes]
    for one, (two, _) in zip(alone, together.run(tmp_path / "jobs", wanted, 2), strict=True):
        torch.testing.assert_close(jobs.weights(two), jobs.weights(one), rtol=0, atol=1e-10)
        for event, figure in (("train", "loss"), ("validation", "loss"), ("validation", "accuracy")):
            expected, found = (torch.tensor(jobs.curve(run, event, "step", figure)) for run in (one, two))
            assert len(found)
            torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)  # sums for the log are in float32
