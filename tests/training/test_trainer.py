"""The loop: batches, gradients, intervals, best and last, early stopping, NaN and infinity."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from phmctl.data.batches import BatchStream, Part, collate, parts_of, seed_dropout
from phmctl.data.prepared import PreparedData
from phmctl.errors import NonFiniteError, PhmctlError
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.runs.results import read_metrics
from phmctl.storage import read_checkpoint, saved_steps
from phmctl.tasks.base import Task
from phmctl.training.optimiser import build_optimiser
from phmctl.training.train import train_task
from phmctl.training.trainer import Guard, Trainer
from tests.training.conftest import Fit
from tests.training.fake import FakeTask, make_recipe
from tests.training.jobs import DoubleTask

CPU = torch.device("cpu")

# ---------------------------------------------- which batches a step has, and which process computes what of them


@given(before=st.integers(0, 20), after=st.integers(1, 10))
def test_a_stream_goes_on_from_any_position(before: int, after: int) -> None:
    stream = BatchStream(FakeTask().plan)
    stream.next(before)
    resumed = BatchStream(FakeTask().plan, stream.epoch, stream.position)
    assert [rows.tolist() for rows in resumed.next(after)] == [rows.tolist() for rows in stream.next(after)]
    assert (resumed.epoch, resumed.position) == (stream.epoch, stream.position)


def _plan(*sizes: int) -> list[np.ndarray]:
    return list(np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1]))


@given(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=9), processes=st.integers(1, 9))
def test_every_row_counts_once_and_every_process_has_something(sizes: list[int], processes: int) -> None:
    shares = [parts_of(_plan(*sizes), rank, processes) for rank in range(processes)]
    counted = [row for share in shares for part in share if part.counts for row in part.rows.tolist()]
    assert sorted(counted) == list(range(sum(sizes)))
    assert all(share and all(len(part.rows) for part in share) for share in shares)


@pytest.mark.parametrize("rank", range(2))
def test_whole_micro_batches_go_round_and_one_is_divided_in_turns_as_its_rows_are_sorted_by_length(rank: int) -> None:
    assert [part.micro_batch for part in parts_of(_plan(3, 3, 3, 3, 3), rank, 2)] == list(range(rank, 5, 2))
    (part,) = parts_of(_plan(7), rank, 2)
    assert (part.micro_batch, part.piece, part.rows.tolist()) == (0, rank, list(range(rank, 7, 2)))


def _draw(seed: int, step: int, micro_batch: int, piece: int = 0) -> tuple[float, ...]:
    seed_dropout(CPU, seed, step, Part(micro_batch, piece, np.arange(1)))
    return tuple(torch.rand(4).tolist())


def test_dropout_depends_on_seed_step_micro_batch_and_piece_alone() -> None:
    first = _draw(1, 7, 2)
    torch.rand(13)
    assert _draw(1, 7, 2) == first
    different = [(2, 7, 2), (1, 8, 2), (1, 7, 3), (1, 2, 7), (1, 7, 2, 1)]
    assert len({first, *(_draw(*arguments) for arguments in different)}) == 6


# ------------------------------------------------------------------------------------------------------ gradients


def _trainer(task: Task, recipe: Recipe, root: Path) -> Trainer:
    trainer = Trainer(task, Run.create(root, recipe), CPU)
    trainer.begin()
    return trainer


def test_the_time_of_loading_is_not_time_of_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("phmctl.training.progress.time.perf_counter", lambda: clock[0])
    trainer = Trainer(FakeTask(), Run.create(tmp_path, make_recipe()), CPU)
    clock[0] = 60.0
    trainer.begin()
    assert trainer._throughput.elapsed == 0


def _gradient(trainer: Trainer, *plan: Any) -> Tensor:
    """Return the gradient, of all parameters as one vector, of a step of micro-batches of these rows."""
    trainer.optimiser.zero_grad()
    trainer._gradients(1, plan, sum(trainer.task.cost(rows).items for rows in plan))
    return torch.cat([parameter.grad.flatten() for parameter in trainer.model.parameters()])


@pytest.mark.parametrize("rules", ["separate", "model"])
def test_a_step_of_unequal_batches_has_the_gradient_of_the_one_big_batch(
    rules: str, tiny_recipe: Recipe, miniature_data: Path, tmp_path: Path
) -> None:
    """It is that of the mean loss over all tokens: a batch of few must not weigh as much as one of many."""
    model = tiny_recipe.model.model_copy(update={"dropout": 0.0, "rules": rules})
    training = tiny_recipe.training.model_copy(update={"label_smoothing": 0.1, "device": "cpu"})
    recipe = tiny_recipe.model_copy(update={"model": model, "training": training})
    task = DoubleTask(recipe, PreparedData.find(recipe.data, miniature_data))
    trainer = _trainer(task, recipe, tmp_path)
    split = task.prepared.split("train")
    sizes = (1, 9, 4, 2, 8)  # sentences a micro-batch
    rows = np.argsort(split.target.lengths, kind="stable")[:: len(split) // sum(sizes)][: sum(sizes)]
    parts = np.split(rows, np.cumsum(sizes)[:-1])
    assert len({task.cost(part).items / len(part) for part in parts}) == len(sizes)
    total, count = task.loss(trainer.model, collate(split, rows))
    gradients = torch.autograd.grad(total / count, list(trainer.model.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in gradients])
    assert expected.dtype == torch.float64
    assert expected.norm() > 1e-3
    for plan in ([rows], parts):
        assert (_gradient(trainer, *plan) - expected).norm() <= 1e-10 * expected.norm()
    means = sum(_gradient(trainer, part) for part in parts) / len(parts)
    assert (means - expected).norm() > 1e-3 * expected.norm()


def test_clipping_limits_the_norm_and_reports_the_one_before(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trainer = _trainer(FakeTask(dropout=0.0), make_recipe(clip=0.01), tmp_path)
    norm, after = _gradient(trainer, trainer.task.plan(0)[0]).norm().item(), []
    trainer.optimiser.zero_grad()
    gradients = list(trainer.model.parameters())
    monkeypatch.setattr(
        trainer.optimiser, "step", lambda: after.extend(parameter.grad.flatten() for parameter in gradients)
    )
    trainer._step()
    assert trainer._norm.item() == pytest.approx(norm, rel=1e-5)
    assert torch.cat(after).norm().item() == pytest.approx(0.01, rel=1e-3)


def test_a_gradient_that_is_not_finite_ends_a_step_whose_weights_are_built_once(
    tiny_recipe: Recipe, miniature_data: Path, tmp_path: Path
) -> None:
    training = tiny_recipe.training.model_copy(update={"accumulate": 2, "device": "cpu"})
    model = tiny_recipe.model.model_copy(update={"algebra": "phm", "n": 4})
    recipe = tiny_recipe.model_copy(update={"model": model, "training": training})
    trainer = _trainer(DoubleTask(recipe, PreparedData.find(recipe.data, miniature_data)), recipe, tmp_path)
    trainer.model.encoder[0].feed_forward.expand.S.register_hook(lambda gradient: gradient * math.nan)
    with pytest.raises(NonFiniteError, match="step 1;"):
        trainer._step()


def test_attention_never_takes_cudnns_kernels_in_a_training(fit: Fit) -> None:
    seen = []

    class Task(FakeTask):
        def loss(self, model: nn.Module, batch: Any) -> Any:
            kernels = torch.backends.cuda
            seen.append((kernels.flash_sdp_enabled(), kernels.mem_efficient_sdp_enabled(), kernels.cudnn_sdp_enabled()))
            return super().loss(model, batch)

    before = torch.backends.cuda.cudnn_sdp_enabled()
    fit(Task(), steps=1)
    assert set(seen) == {(True, True, False)}
    assert torch.backends.cuda.cudnn_sdp_enabled() is before


def test_the_logged_loss_is_the_mean_of_the_interval(fit: Fit) -> None:
    """At a learning rate of (nearly) nothing and without dropout the mean loss can be computed beside."""
    task = FakeTask(dropout=0.0)
    result = fit(task, steps=5, learning_rate=1e-30)
    torch.manual_seed(1)
    model = task.build_model(CPU)
    batches = [task.collate(rows) for rows in task.plan(0)[:5]]
    total = sum(task.loss(model, batch)[0].item() for batch in batches)
    entry = read_metrics(result.run.metrics_path)[0]
    assert entry["loss"] == pytest.approx(total / sum(batch.target_tokens for batch in batches), rel=1e-6)
    assert entry["target_tokens"] == sum(batch.target_tokens for batch in batches)


def test_bfloat16_keeps_float32_weights(fit: Fit) -> None:
    run = fit(steps=5, precision="bfloat16").run
    tensors = read_checkpoint(run.checkpoint("last"), ["model"]).tensors["model"]
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


# ----------------------------------------------------------------------------- log, validate, save, stop early


def test_intervals(fit: Fit) -> None:
    task = FakeTask()
    run = fit(task, steps=23, log_every=4, validate_every=10, save_every=6, keep=9).run
    entries = read_metrics(run.metrics_path)
    assert [e["step"] for e in entries if e["event"] == "train"] == [4, 8, 12, 16, 20, 23]
    assert [e["step"] for e in entries if e["event"] == "validation"] == [10, 20, 23]
    assert {6, 12, 18, 23} <= set(saved_steps(run.checkpoints_folder))
    assert task.validations == 3


def _scored(*scores: float) -> FakeTask:
    """A task whose validations have these scores."""
    task, remaining = FakeTask(), iter(scores)
    task.score = lambda metrics: next(remaining)  # type: ignore[method-assign]
    return task


def test_last_and_best_point_to_their_steps(fit: Fit) -> None:
    result = fit(_scored(1.0, 3.0, 2.0, 0.0), steps=40, validate_every=10, save_every=5)
    assert result.run.checkpoint("last").name == "step-000040"
    assert result.run.checkpoint("best").name == "step-000020"
    assert (result.best_step, result.best_score) == (20, 3.0)
    assert saved_steps(result.run.checkpoints_folder) == [20, 40]  # keep: 1


def test_patience_stops_and_says_so_and_the_run_stays_stopped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task = _scored(1.0, 0.9, 2.0, 1.9, 1.8, 1.7, 1.6)
    recipe = make_recipe(steps=500, validate_every=3, patience=3)
    result = train_task(task, recipe, tmp_path)
    run = result.run
    assert (result.steps, result.best_step, run.checkpoint("last").name) == (18, 9, "step-000018")
    assert "training.patience = 3" in capsys.readouterr().err
    event = read_metrics(run.metrics_path)[-1]
    assert event.pop("seconds") > 0
    assert event == {"event": "early_stop", "step": 18, "validations": 3, "best_step": 9, "best_score": 2.0}
    written = run.metrics_path.read_bytes()
    assert train_task(FakeTask(), recipe, tmp_path, old=run).steps == 18
    assert "training.patience" in capsys.readouterr().err
    assert run.metrics_path.read_bytes() == written


def test_validations_without_a_number_stop_too(fit: Fit) -> None:
    result = fit(_scored(*[math.nan] * 2), steps=500, validate_every=3, patience=2)
    assert (result.steps, result.best_step) == (6, None)


def test_the_last_step_is_no_early_stop(fit: Fit) -> None:
    run = fit(_scored(1.0, 0.9), steps=6, validate_every=3, patience=1).run
    assert "early_stop" not in {entry["event"] for entry in read_metrics(run.metrics_path)}


def test_validation_sees_no_dropout_and_training_does(fit: Fit) -> None:
    modes: list[tuple[str, bool]] = []

    class Watching(FakeTask):
        def loss(self, model, batch):
            modes.append(("train", model.training))
            return super().loss(model, batch)

        def validate(self, model, *options):
            modes.append(("validate", model.training))
            return super().validate(model, *options)

    fit(Watching(), steps=3, validate_every=1)
    assert modes == [("train", True), ("validate", False)] * 3


@pytest.mark.parametrize("exhausted", ["CUDA", "CPU", "Python"])
def test_a_device_without_memory_left_names_the_settings(fit: Fit, exhausted: str) -> None:
    class Greedy(FakeTask):
        def loss(self, model: Any, batch: Any) -> Any:
            if self.validations and exhausted == "CUDA":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has …")
            if self.validations and exhausted == "CPU":
                torch.empty(1 << 50)
            if self.validations:
                raise MemoryError
            return super().loss(model, batch)

    with pytest.raises(PhmctlError) as caught:
        fit(Greedy(), batch_tokens=5000, accumulate=3)
    assert caught.value.exit_code == 1
    for place in ("step 10", "cpu", "training.batch_tokens (5000", "training.accumulate (3"):
        assert place in str(caught.value)


# ------------------------------------------------------------------------------------------------ NaN, infinity


def test_a_bad_value_is_named_by_the_step_and_the_newest_checkpoint_is_sound(fit: Fit, tmp_path: Path) -> None:
    with pytest.raises(NonFiniteError, match=r"step 9; .*checkpoints in"):
        fit(FakeTask(poison=(1, 1)), steps=20, save_every=1)
    checkpoint = read_checkpoint(Run.open(tmp_path / "fake/phm-n4").checkpoint("last"), ["model", "optimizer"])
    assert checkpoint.state["step"] == 8
    for tensors in checkpoint.tensors.values():
        assert all(bool(torch.isfinite(tensor).all()) for tensor in tensors.values())
    with pytest.raises(NonFiniteError, match="no checkpoint"):
        fit(FakeTask(poison=(0, 1)), steps=20)
    with pytest.raises(NonFiniteError, match="step 4;"):
        fit(FakeTask(poison=(1, 3)), steps=20, accumulate=3)


def test_the_weights_are_those_from_before_the_bad_step(fit: Fit) -> None:
    """Steps 1 to 3 are sound; in step 4 the loss alone is bad. No log line or checkpoint falls in between."""
    seen: list[Tensor] = []
    models: list[nn.Module] = []

    class Diverging(FakeTask):
        def build_model(self, device):
            models.append(super().build_model(device))
            return models[0]

        def loss(self, model, batch):
            seen.append(model.first.weight.detach().clone())
            loss, tokens = super().loss(model, batch)
            return loss * (float("inf") if len(seen) >= 4 else 1.0), tokens

    with pytest.raises(NonFiniteError, match="step 4;"):
        fit(Diverging(), steps=20, log_every=20, save_every=20, validate_every=20)
    assert len(seen) == 4
    assert torch.equal(seen[3], models[0].first.weight)
    assert not torch.equal(seen[2], seen[3])


@pytest.mark.parametrize(
    ("losses", "norm", "first"),
    [([1.0, 2.0], 1.0, None), ([1.0, math.inf, 1.0, math.nan], 1.0, 2), ([0.0], math.nan, 1)],
)
def test_the_guard_remembers_the_first_bad_step(losses: list[float], norm: float, first: int | None) -> None:
    guard = Guard(CPU)
    for step, loss in enumerate(losses, start=1):
        guard.note(step, torch.tensor(loss), torch.tensor(norm))
    assert guard.first_bad_step() == first
    assert guard.flag.item() == (first is not None)


def test_the_flag_makes_the_fused_optimiser_skip() -> None:
    """On CUDA the host learns of a bad step only later: until then the weights must not move."""
    layer = nn.Linear(2, 2)
    before = layer.weight.detach().clone()
    optimiser = build_optimiser(layer, make_recipe().training)
    flag = torch.zeros(())
    optimiser.found_inf = flag
    for bad, moves in ((1.0, False), (0.0, True)):
        flag.fill_(bad)
        layer(torch.ones(1, 2)).sum().backward()
        optimiser.step()
        assert torch.equal(layer.weight, before) is not moves
