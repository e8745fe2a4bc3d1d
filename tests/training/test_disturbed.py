"""Checkpoints that are damaged, and runs that are moved, removed or replaced, while they are trained."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from phmctl.checkpoints import MANIFEST, read_checkpoint, read_manifest, step_name
from phmctl.errors import RunError
from phmctl.files import seal
from phmctl.runs import Run
from phmctl.runs.summary import summarise
from phmctl.training.saving import averaged_steps, steps_to_average
from phmctl.training.train import train_task
from tests.data.helpers import files_below, flip
from tests.training.conftest import Fit
from tests.training.fake import FakeTask, make_recipe
from tests.training.test_resume import Interrupting, contents

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
    for step in (10, 20):
        _flip_weights(run.checkpoint(str(step)))
    with pytest.raises(RunError, match=r"--checkpoint step-000015 .*undamaged: step-000005, step-000015\)"):
        fit(old=run, steps=30, keep=4)
    assert fit(old=run, checkpoint="step-000015", steps=30, keep=4).steps == 30


@pytest.mark.parametrize(
    ("final", "every", "count", "expected"),
    [(20, 5, 3, [10, 15, 20]), (20, 5, 1, [20]), (18, 5, 3, [10, 15, 18]), (5, 5, 3, [5]), (3, 5, 2, [3])],
)
def test_steps_of_the_average(final: int, every: int, count: int, expected: list[int]) -> None:
    assert steps_to_average(make_recipe(save_every=every, average=count).training, final) == expected


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


# ----------------------------------------------------------------------- a run that is moved or removed while it trains


def _replace(folder: Path) -> None:
    """Move a run away; another run gets its name."""
    folder.rename(folder.with_name("moved"))
    assert Run.create(folder.parents[2], make_recipe(seed=9)).folder == folder


def _move(folder: Path) -> None:
    folder.rename(folder.with_name("moved"))


@pytest.mark.parametrize("move", [_move, _replace])
@pytest.mark.parametrize("at", [2, 7, 19])
def test_a_moved_run_ends_with_its_checkpoint_where_it_is_and_is_continued_there(
    fit: Fit, folder: Path, tmp_path: Path, move: Callable[[Path], None], at: int
) -> None:
    uninterrupted = fit(root=tmp_path / "whole", **SETTINGS).run
    moved = folder.with_name("moved")
    with pytest.raises(RunError, match=str(moved)) as caught:
        fit(Disturbed(move, at, folder), **SETTINGS)
    assert caught.value.exit_code == 2
    if move is _move:
        assert not folder.exists()
    else:
        assert not any((folder / "checkpoints").iterdir())
        assert not (folder / "metrics.jsonl").exists()
    run = Run.open(moved)
    assert run.checkpoint("last").name == step_name(5 * -(-at // 5))
    assert summarise(moved).state == "failed"
    assert contents(fit(old=run, **SETTINGS).run) == contents(uninterrupted)


@pytest.mark.parametrize("remove", [shutil.rmtree, lambda folder: [shutil.rmtree(folder), folder.mkdir()]])
def test_a_removed_run_ends_with_an_error_and_leaves_nothing(
    fit: Fit, folder: Path, remove: Callable[[Path], object]
) -> None:
    with pytest.raises(RunError, match=f"{folder} .*lost"):
        fit(Disturbed(remove, 7, folder), **SETTINGS)
    assert not folder.exists() or not any(folder.iterdir())


def test_a_run_whose_files_are_removed_is_a_removed_run(fit: Fit, folder: Path) -> None:
    def empty(folder: Path) -> None:
        (folder / "recipe.yaml").unlink()
        shutil.rmtree(folder / "checkpoints")

    with pytest.raises(RunError, match=f"{folder} .*lost"):
        fit(Disturbed(empty, 7, folder), **SETTINGS)
    assert not (folder / "checkpoints").exists()


def test_a_run_that_is_moved_while_its_model_is_built_gets_no_skeleton(fit: Fit, folder: Path) -> None:
    class Slow(FakeTask):
        def build_model(self, device: torch.device) -> torch.nn.Module:
            _move(folder)
            return super().build_model(device)

    with pytest.raises(RunError, match="moved"):
        fit(Slow(), **SETTINGS)
    assert not folder.exists()
