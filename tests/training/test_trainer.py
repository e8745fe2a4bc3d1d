"""The loop: gradients, intervals, best and last, early stopping."""

import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from phmctl.checkpoints import read_checkpoint, saved_steps
from phmctl.errors import DataError, OutputError, PhmctlError, RecipeError
from phmctl.runs import Run
from phmctl.runs.metrics import read_metrics
from phmctl.training.progress import MetricsLog, ProgressLine
from phmctl.training.train import train_task
from phmctl.training.trainer import Trainer
from tests.training.conftest import Fit
from tests.training.fake import BATCHES_PER_EPOCH, FakeBatch, FakeTask, make_recipe


@pytest.fixture
def trainer(tmp_path: Path) -> Iterator[Trainer]:
    recipe = make_recipe(clip=0.01)
    run = Run.create(tmp_path, recipe)
    with MetricsLog(run.metrics_path) as log:
        yield Trainer(FakeTask(), run, torch.device("cpu"), log, ProgressLine(1, 0, quiet=True))


def _gradients(trainer: Trainer, batches: list[FakeBatch]) -> torch.Tensor:
    trainer.model.eval()  # without dropout
    trainer.optimiser.zero_grad()
    tokens = sum(batch.target_tokens for batch in batches)
    for batch in batches:
        trainer._backward(trainer.model, batch, tokens)
    return torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()])


def test_accumulation_is_exact(trainer: Trainer) -> None:
    """Unequal parts of a batch give the gradient of the whole: the mean is over all its tokens, not of means."""
    whole = FakeTask.make(3, 32)
    parts, start = [], 0
    for size in (2, 20, 7, 3):
        rows = slice(start, start + size)
        parts.append(FakeBatch(whole.inputs[rows], whole.labels[rows], size))
        start += size
    expected = _gradients(trainer, [whole])
    assert torch.allclose(_gradients(trainer, parts), expected, rtol=1e-6, atol=1e-7)
    reference = F.cross_entropy(trainer.model(whole.inputs), whole.labels)  # the mean
    by_hand = torch.cat([g.flatten() for g in torch.autograd.grad(reference, list(trainer.model.parameters()))])
    assert torch.allclose(expected, by_hand, rtol=1e-6, atol=1e-7)


def test_clipping_limits_the_norm_and_reports_the_one_before(trainer: Trainer) -> None:
    gradients = _gradients(trainer, [FakeTask.make(3, 32)])
    assert trainer._clip().item() == pytest.approx(gradients.norm().item(), rel=1e-5)
    after = torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()])
    assert after.norm().item() == pytest.approx(0.01, rel=1e-3)
    assert torch.allclose(after / after.norm(), gradients / gradients.norm(), atol=1e-5)


def test_no_clipping_leaves_the_gradients(trainer: Trainer) -> None:
    trainer.settings = make_recipe(clip=0.0).training
    gradients = _gradients(trainer, [FakeTask.make(3, 32)])
    trainer._clip()
    assert torch.equal(torch.cat([p.grad.flatten() for p in trainer.model.parameters()]), gradients)


def test_it_learns(fit: Fit) -> None:
    result = fit(steps=300)
    losses = [entry["loss"] for entry in read_metrics(result.run.metrics_path) if entry["event"] == "validation"]
    assert losses[-1] < 0.3 < 1.0 < losses[0]
    assert result.best_score == -min(losses)


def test_the_logged_loss_is_the_mean_of_the_interval(fit: Fit) -> None:
    """At a learning rate of (nearly) nothing and without dropout the mean loss can be computed beside."""
    task = FakeTask()
    task.build_model = _without_dropout  # type: ignore[method-assign]
    result = fit(task, steps=5, learning_rate=1e-30)
    torch.manual_seed(1)
    model = _without_dropout(torch.device("cpu"))
    batches = [task.collate(rows) for rows in task.plan(0)[:5]]
    total = sum(task.loss(model, batch)[0].item() for batch in batches)
    entry = read_metrics(result.run.metrics_path)[0]
    assert entry["loss"] == pytest.approx(total / sum(batch.target_tokens for batch in batches), rel=1e-6)
    assert entry["target_tokens"] == sum(batch.target_tokens for batch in batches)


def _without_dropout(device: torch.device) -> torch.nn.Module:
    model = FakeTask().build_model(device)
    model.dropout.p = 0.0
    return model


def test_the_seed_decides(fit: Fit, tmp_path: Path) -> None:
    def weights(seed: int, folder: str) -> torch.Tensor:
        run = fit(steps=3, seed=seed, root=tmp_path / folder).run
        return read_checkpoint(run.checkpoint("last"), ["model"]).tensors["model"]["first.weight"]

    assert torch.equal(weights(1, "a"), weights(1, "b"))
    assert not torch.equal(weights(1, "c"), weights(2, "d"))


def test_intervals(fit: Fit) -> None:
    task = FakeTask()
    run = fit(task, steps=23, log_every=4, validate_every=10, save_every=6, keep=9).run
    entries = read_metrics(run.metrics_path)
    assert [e["step"] for e in entries if e["event"] == "train"] == [4, 8, 12, 16, 20, 23]
    assert [e["step"] for e in entries if e["event"] == "validation"] == [10, 20, 23]
    assert {6, 12, 18, 23} <= set(saved_steps(run.checkpoints_folder))
    assert task.validations == 3


def test_last_and_best_point_to_their_steps(fit: Fit) -> None:
    task = FakeTask()
    scores = iter([1.0, 3.0, 2.0, 0.0])
    task.score = lambda metrics: next(scores)  # type: ignore[method-assign]
    result = fit(task, steps=40, validate_every=10, save_every=5)
    assert result.run.checkpoint("last").name == "step-000040"
    assert result.run.checkpoint("best").name == "step-000020"
    assert (result.best_step, result.best_score) == (20, 3.0)
    assert saved_steps(result.run.checkpoints_folder) == [20, 40]  # keep: 1


def test_a_nan_score_is_never_the_best(fit: Fit) -> None:
    task = FakeTask()
    scores = iter([1.0, math.nan])
    task.score = lambda metrics: next(scores)  # type: ignore[method-assign]
    assert fit(task, steps=20).best_step == 10


def _scored(*scores: float) -> FakeTask:
    """A task whose validations have these scores."""
    task, rest = FakeTask(), iter(scores)
    task.score = lambda metrics: next(rest)  # type: ignore[method-assign]
    return task


def test_patience_stops_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    task = _scored(1.0, 0.9, 2.0, 1.9, 1.8, 1.7, 1.6)
    result = train_task(task, make_recipe(steps=500, validate_every=3, patience=3), tmp_path)
    assert result.steps == 18
    assert result.run.checkpoint("last").name == "step-000018"
    assert result.best_step == 9
    said = "stopped early at step 18: no better validation since step 9 (training.patience = 3)"
    assert said in capsys.readouterr().err.splitlines()
    event = read_metrics(result.run.metrics_path)[-1]
    assert event.pop("seconds") > 0
    assert event == {"event": "early_stop", "step": 18, "validations": 3, "best_step": 9, "best_score": 2.0}


def test_a_run_that_stopped_early_stays_stopped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = make_recipe(steps=500, validate_every=3, patience=1)
    run = train_task(_scored(1.0, 0.9), recipe, tmp_path, quiet=True).run
    written = run.metrics_path.read_bytes()
    assert train_task(FakeTask(), recipe, tmp_path, old=run).steps == 6
    assert "nothing left to train" in (said := capsys.readouterr().err)
    assert "stopped early at step 6 (training.patience)" in said
    assert run.metrics_path.read_bytes() == written


def test_validations_without_a_number_stop_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train_task(_scored(*[math.nan] * 2), make_recipe(steps=500, validate_every=3, patience=2), tmp_path)
    assert "no better validation at all: no score was a number" in capsys.readouterr().err


def test_the_last_step_is_no_early_stop(fit: Fit) -> None:
    run = fit(_scored(1.0, 0.9), steps=6, validate_every=3, patience=1).run
    assert "early_stop" not in {entry["event"] for entry in read_metrics(run.metrics_path)}


def test_tensorboard_missing_is_found_before_a_run_is_made(
    fit: Fit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(RecipeError, match="TensorBoard is not installed"):
        fit(tensorboard=True)
    assert not list(tmp_path.iterdir())


def test_keep_counts_the_interval_only(fit: Fit) -> None:
    run = fit(steps=40, validate_every=8, save_every=10, keep=3).run
    assert saved_steps(run.checkpoints_folder) == [20, 30, 40]


def test_validation_sees_no_dropout_and_training_does(fit: Fit) -> None:
    modes: list[tuple[str, bool]] = []

    class Watching(FakeTask):
        def loss(self, model, batch):
            modes.append(("train", model.training))
            return super().loss(model, batch)

        def validate(self, model, *rest):
            modes.append(("validate", model.training))
            return super().validate(model, *rest)

    fit(Watching(), steps=3, validate_every=1)
    assert modes == [("train", True), ("validate", False)] * 3


def test_an_empty_training_split_is_an_error(fit: Fit) -> None:
    task = FakeTask()
    task.plan = lambda epoch: []  # type: ignore[method-assign]
    with pytest.raises(DataError, match="holds no sentence"):
        fit(task)


def test_epochs_are_counted(fit: Fit) -> None:
    run = fit(steps=BATCHES_PER_EPOCH + 3).run
    state = read_checkpoint(run.checkpoint("last"), []).state
    assert (state["epoch"], state["position"]) == (1, 3)


def test_the_run_holds_recipe_environment_and_metrics(fit: Fit) -> None:
    run = fit(steps=5).run
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["device"] == "cpu"
    assert environment["threads"] >= 1
    assert run.text_folder.is_dir()
    assert Run.open(run.folder).recipe == run.recipe


def test_a_disk_that_fills_up_is_an_output_error(fit: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("phmctl.sealed.sync_file", full)
    with pytest.raises(OutputError, match="No space left on device; choose a folder"):
        fit(steps=10)


def test_a_device_without_memory_left_names_the_settings(fit: Fit) -> None:
    class Greedy(FakeTask):
        def loss(self, model: Any, batch: Any) -> Any:
            if self.validations:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …")
            return super().loss(model, batch)

    with pytest.raises(PhmctlError) as caught:
        fit(Greedy(), batch_tokens=5000, accumulate=3)
    assert caught.value.exit_code == 1
    assert str(caught.value).splitlines() == [
        "after step 10: the memory of cpu is too small (CUDA out of memory)",
        "lower training.batch_tokens (5000 now) and raise training.accumulate (3 now) by the same factor: "
        "a step then sees as much as before",
    ]


def test_bfloat16_keeps_float32_weights(fit: Fit) -> None:
    run = fit(steps=5, precision="bfloat16").run
    tensors = read_checkpoint(run.checkpoint("last"), ["model"]).tensors["model"]
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}
