"""Checkpoints that are damaged while their run is trained."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from phmctl.errors import OutputError, RunError
from phmctl.runs import Run
from phmctl.storage import MANIFEST, read_checkpoint, read_manifest, seal, step_name
from phmctl.training.train import averaged_steps, check_resumable, train_task
from tests.data.helpers import files_below, flip
from tests.training.conftest import Fit
from tests.training.fake import FakeTask, make_recipe
from tests.training.test_resume import Interrupting, expect_refusal

SETTINGS: dict[str, Any] = {"steps": 20, "average": 3, "keep": 2, "validate_every": 100}


class Disturbed(FakeTask):
    """Calls a function with the run's folder after this many forward passes."""

    def __init__(self, disturb: Callable[[Path], object], at: int, folder: Path) -> None:
        super().__init__()
        self.disturb, self.left, self.folder = disturb, at, folder

    def loss(self, model: Any, batch: Any) -> Any:
        self.left -= 1
        if self.left == 0:
            self.disturb(self.folder)
        return super().loss(model, batch)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "fake/phm-n4/v001"


# ------------------------------------------------------------------------------ a checkpoint damaged before the average


def _flip_weights(checkpoint: Path) -> None:
    flip(checkpoint / "model.safetensors")


def _cut_weights(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


@pytest.mark.parametrize("damage", [_flip_weights, _cut_weights, shutil.rmtree])
def test_the_average_is_of_the_undamaged_checkpoints_and_says_which(
    fit: Fit, folder: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object]
) -> None:
    lost = folder / "checkpoints" / step_name(15)
    task = Disturbed(lambda folder: damage(lost), 17, folder)
    recipe = make_recipe(**SETTINGS)
    run = train_task(task, recipe, folder.parents[2]).run
    assert averaged_steps(run.checkpoints_folder) == [10, 20]
    output = capsys.readouterr().err
    assert f"warning: {lost} " in output
    assert "10, 20" in output
    before = files_below(run.folder)
    train_task(FakeTask(), recipe, folder.parents[2], old=run)
    assert files_below(run.folder) == before
    models = [read_checkpoint(run.checkpoint(name), ["model"]).tensors["model"] for name in ("10", "20", "average")]
    torch.testing.assert_close(models[2]["last.bias"], (models[0]["last.bias"] + models[1]["last.bias"]) / 2)


def test_the_advice_of_a_damaged_checkpoint_names_undamaged_ones(fit: Fit) -> None:
    run = fit(steps=20, keep=4).run
    _flip_weights(run.checkpoint("10"))
    flip(run.checkpoint("20") / "optimizer.safetensors")
    with expect_refusal(
        run, r"optimizer\.safetensors .*checkpoint step-000015 .*undamaged: step-000005, step-000015\)"
    ):
        fit(old=run, steps=30, keep=4)
    assert fit(old=run, checkpoint="step-000015", steps=30, keep=4).steps == 30


def test_a_checkpoint_before_step_one_is_not_averaged(fit: Fit) -> None:

    run = fit(Interrupting(0), **SETTINGS | {"steps": 10}).run
    assert averaged_steps(fit(old=run, **SETTINGS | {"steps": 10}).run.checkpoints_folder) == [5, 10]


# --------------------------------------------------------------------------------- the model section of a checkpoint


def test_a_checkpoint_of_another_model_is_refused(fit: Fit) -> None:
    """A recipe with a digest of its own may lie beside it: heads decide no shape."""
    run = fit(steps=5).run
    checkpoint = run.checkpoint("last")
    section = read_manifest(checkpoint)["model"]
    assert section == run.recipe.model.model_dump(mode="json")
    (checkpoint / MANIFEST).unlink()
    seal(checkpoint, MANIFEST, {"model": section | {"heads": 2}})
    with pytest.raises(RunError, match=r"model.heads = 2.*recipe.yaml has 8"):
        fit(old=run, steps=10)


def test_a_run_that_is_moved_ends_at_the_next_write_and_is_nowhere_else(folder: Path, fit: Fit) -> None:
    moved = folder.with_name("moved")
    with pytest.raises(OutputError, match="v001"):
        fit(Disturbed(lambda folder: folder.rename(moved), 12, folder), **SETTINGS)
    assert not folder.exists()
    assert fit(old=Run.open(moved), **SETTINGS).steps == 20


def test_a_run_whose_checkpoints_were_removed_is_refused(fit: Fit) -> None:
    run = fit(steps=5).run
    shutil.rmtree(run.checkpoints_folder)
    before = files_below(run.folder)
    with pytest.raises(RunError, match="checkpoints was removed"):
        check_resumable(run, run.recipe)
    assert files_below(run.folder) == before
