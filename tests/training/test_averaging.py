"""Checkpoint averaging."""

from pathlib import Path

import pytest
import torch

from phmctl.checkpoints import read_checkpoint, step_name, write_checkpoint
from phmctl.errors import RunError
from phmctl.runs.metrics import read_metrics
from phmctl.training.saving import average_checkpoints, averaged_steps
from tests.training.conftest import Fit


def _write(folder: Path, step: int, value: float, count: int) -> None:
    tensors = {"w": torch.full((2,), value), "count": torch.tensor(count)}
    write_checkpoint(folder / step_name(step), {"model": tensors}, {})


def test_the_mean_is_taken_and_integers_are_the_newest(tmp_path: Path) -> None:
    for step, value in ((1, 1.0), (2, 2.0), (3, 6.0)):
        _write(tmp_path, step, value, 10 * step)
    means = average_checkpoints(tmp_path, [1, 2, 3])
    assert means["w"].tolist() == [3.0, 3.0]
    assert means["w"].dtype == torch.float32
    assert means["count"].item() == 30
    read = read_checkpoint(tmp_path / "average", ["model"])
    assert torch.equal(read.tensors["model"]["w"], means["w"])
    assert averaged_steps(tmp_path) == [1, 2, 3]


def test_one_checkpoint_is_its_own_average(tmp_path: Path) -> None:
    _write(tmp_path, 1, 0.1, 1)
    assert torch.equal(average_checkpoints(tmp_path, [1])["w"], torch.full((2,), 0.1))


def test_a_missing_checkpoint_is_refused(tmp_path: Path) -> None:
    _write(tmp_path, 1, 0.1, 1)
    with pytest.raises(RunError, match="step-000002"):
        average_checkpoints(tmp_path, [1, 2])


def test_no_average_is_no_steps(tmp_path: Path) -> None:
    assert averaged_steps(tmp_path) == []


def test_a_training_averages_its_last_checkpoints_and_measures_them(fit: Fit) -> None:
    run = fit(steps=20, keep=3, average=2).run
    assert averaged_steps(run.checkpoints_folder) == [15, 20]
    entry = read_metrics(run.metrics_path)[-1]
    assert (entry["event"], entry["checkpoints"]) == ("average", 2)
    parts = [read_checkpoint(run.checkpoint(str(step)), ["model"]).tensors["model"] for step in (15, 20)]
    mean = read_checkpoint(run.checkpoint("average"), ["model"]).tensors["model"]
    assert torch.allclose(mean["last.bias"], (parts[0]["last.bias"] + parts[1]["last.bias"]) / 2)
