"""Resuming: a run that was interrupted equals one that was not, to the last bit."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from phmctl.errors import RecipeError, RunError
from phmctl.runs import Run
from phmctl.runs.results import read_metrics
from phmctl.runs.summary import summarise
from phmctl.storage import MANIFEST, read_checkpoint, read_manifest, step_name, write_checkpoint
from phmctl.training.train import averaged_steps, check_resumable, run_to_resume, train_task
from tests.data.helpers import files_below
from tests.training.conftest import Fit
from tests.training.fake import FakeTask, make_recipe

SETTINGS: dict[str, Any] = {
    "steps": 40,
    "accumulate": 3,
    "validate_every": 8,
    "save_every": 10,
    "log_every": 6,
    "keep": 3,
    "average": 3,
    "clip": 0.5,
    "schedule": "inverse_sqrt",
    "warmup": 7,
    "optimizer": "adamw",
    "weight_decay": 0.01,
}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """An uninterrupted run. Shared: do not change it."""
    return train_task(FakeTask(), make_recipe(**SETTINGS), tmp_path_factory.mktemp("whole")).run


class Interrupting(FakeTask):
    """Sends a signal to this process in the middle of an optimiser step; at call 0, before the first."""

    def __init__(self, at_call: int) -> None:
        super().__init__()
        self.calls = 0
        self.at_call = at_call

    def _count(self) -> None:
        if self.calls == self.at_call:
            os.kill(os.getpid(), signal.SIGINT)
        self.calls += 1

    def build_model(self, device: torch.device) -> Any:
        self._count()
        return super().build_model(device)

    def loss(self, model: Any, batch: Any) -> Any:
        self._count()
        return super().loss(model, batch)


def contents(run: Run) -> dict[str, str]:
    """Return the manifests (sizes, SHA-256) of all checkpoints, and the pointers."""
    folder = run.checkpoints_folder
    result = {path.parent.name: path.read_text() for path in folder.glob(f"*/{MANIFEST}")}
    return result | {name: (folder / name).read_text() for name in ("last", "best")}


def _figures(run: Run) -> list[dict[str, Any]]:
    """Return the log without times."""
    clock = ("second", "seconds", "seconds_per_step", "tokens_per_second")
    return [{k: v for k, v in entry.items() if k not in clock} for entry in read_metrics(run.metrics_path)]


def assert_equal(run: Run, expected: Run) -> None:
    assert contents(run) == contents(expected)
    assert _figures(run) == _figures(expected)


@contextmanager
def expect_refusal(run: Run, place: str) -> Iterator[None]:
    """Expect a RunError that names a place, and no change in the run."""
    before = files_below(run.folder)
    with pytest.raises(RunError, match=place):
        yield
    assert files_below(run.folder) == before


# --------------------------------------------------------------------------------------- interrupted and continued


@pytest.mark.parametrize("step", [0, 8, 10, 40])
def test_an_interrupted_run_equals_an_uninterrupted_one(fit: Fit, uninterrupted: Run, step: int) -> None:
    """Dropout, moments, position in the epoch, loss window, best, patience, average: zero tolerance."""
    stopped = fit(Interrupting(max(3 * step - 1, 0)), **SETTINGS)
    assert (stopped.steps, stopped.exit_code) == (step, 130)
    torch.manual_seed(12345)  # whatever the process did in between
    torch.rand(17)
    resumed = fit(old=stopped.run, **SETTINGS)
    assert resumed.run.folder == stopped.run.folder
    assert_equal(resumed.run, uninterrupted)


def test_a_run_stopped_at_every_step_equals_an_uninterrupted_one(fit: Fit, tmp_path: Path) -> None:
    settings = SETTINGS | {"steps": 12, "accumulate": 1, "validate_every": 3, "save_every": 4}
    uninterrupted = fit(root=tmp_path / "whole", **settings)
    result = fit(Interrupting(1), root=tmp_path / "cut", **settings)
    while result.exit_code:
        result = fit(Interrupting(1), old=result.run, **settings)
    assert_equal(result.run, uninterrupted.run)


class InterruptedInValidation(FakeTask):
    """Gets a signal between two batches of a validation, of which it has ten; it never comes to the ninth."""

    def __init__(self, at_validation: int) -> None:
        super().__init__()
        self.at_validation = at_validation
        self.reached = 0

    def validate(self, model: Any, autocast: Any, share: Any) -> dict[str, float]:
        for part in share.mine(range(10)):
            self.reached = part
            if self.validations + 1 == self.at_validation and part == 3:
                os.kill(os.getpid(), signal.SIGTERM)
        return super().validate(model, autocast, share)


@pytest.mark.parametrize(("validation", "step"), [(1, 8), (5, 40)])
def test_a_stop_is_heard_during_a_validation_and_loses_nothing(
    fit: Fit, uninterrupted: Run, validation: int, step: int
) -> None:
    """At step 40 a checkpoint is due as well."""
    task = InterruptedInValidation(validation)
    stopped = fit(task, **SETTINGS)
    assert task.reached == 3
    assert (stopped.steps, stopped.exit_code) == (step, 143)
    assert stopped.run.checkpoint("last").name == step_name(step)
    assert_equal(fit(old=stopped.run, **SETTINGS).run, uninterrupted)


def test_a_run_killed_before_its_first_checkpoint_starts_again(fit: Fit, uninterrupted: Run, tmp_path: Path) -> None:
    run = Run.create(tmp_path, make_recipe(**SETTINGS))
    run.metrics_path.write_text('{"event": "train", "step": 3, "loss": 1}\n')
    assert_equal(fit(old=run, **SETTINGS).run, uninterrupted)


def test_more_steps_continue_a_finished_run(fit: Fit, tmp_path: Path) -> None:
    settings = SETTINGS | {"average": 0}
    uninterrupted = fit(root=tmp_path / "whole", **settings)
    short = fit(root=tmp_path / "short", **(settings | {"steps": 20}))
    longer = fit(old=short.run, **settings)
    name = "step-000040"
    assert contents(longer.run)[name].split("state.json")[0] == contents(uninterrupted.run)[name].split("state.json")[0]
    assert Run.open(longer.run.folder).recipe.training.steps == 40


@pytest.mark.parametrize("further", [{"checkpoint": "step-000020"}, {"steps": 50}], ids=["earlier", "more"])
def test_training_on_drops_the_average_of_the_former_end(fit: Fit, uninterrupted: Run, further: dict[str, Any]) -> None:
    """While it trains nobody may take the old average for the new one; at the end there is the new one."""

    class Watching(FakeTask):
        def loss(self, model: Any, batch: Any) -> Any:
            assert not (done.run.checkpoints_folder / "average").exists()
            return super().loss(model, batch)

    done = fit(**SETTINGS)
    assert averaged_steps(done.run.checkpoints_folder) == [20, 30, 40]
    longer = fit(Watching(), old=done.run, **(SETTINGS | further))
    steps = longer.steps
    assert averaged_steps(done.run.checkpoints_folder) == [steps - 20, steps - 10, steps]
    if steps == 40:
        assert contents(longer.run) == contents(uninterrupted)


# ------------------------------------------------------------------------------------------- nothing left to train


@pytest.mark.parametrize(("checkpoint", "steps"), [("last", 20), ("last", 10), ("step-000010", 10), ("step-000010", 5)])
def test_steps_that_are_done_already_change_nothing(
    fit: Fit, capsys: pytest.CaptureFixture[str], checkpoint: str, steps: int
) -> None:
    run = fit(steps=20, keep=4, average=2).run
    average = run.checkpoint("average") / MANIFEST
    before, written = files_below(run.folder), average.stat().st_mtime_ns
    recipe = make_recipe(steps=steps, keep=4, average=2)
    result = train_task(FakeTask(), recipe, Path("unused"), old=run, checkpoint=checkpoint)
    assert result.steps == (20 if checkpoint == "last" else 10)
    assert str(run.folder) in capsys.readouterr().err
    assert (files_below(run.folder), average.stat().st_mtime_ns) == (before, written)


@pytest.mark.parametrize("content", [b"\xff\n", b"step-000005\n", None])
@pytest.mark.parametrize("steps", [20, 30])
def test_pointers_are_derived_from_the_checkpoints(fit: Fit, content: bytes | None, steps: int) -> None:
    """A kill before they were moved, or damage, changes nothing that is trained; nor where nothing is left to train."""
    run = fit(steps=20, keep=4).run
    right = contents(run)
    for name in ("last", "best"):
        path = run.checkpoints_folder / name
        path.unlink() if content is None else path.write_bytes(content)
    resumed = fit(old=run, steps=steps, keep=4)
    assert resumed.steps_now == steps - 20
    if steps == 20:
        assert contents(run) == right
    assert (run.checkpoints_folder / "last").read_text() == f"step-{steps:06d}\n"
    assert (run.checkpoints_folder / "best").read_text() == f"step-{resumed.best_step:06d}\n"


def test_an_average_whose_line_was_lost_gets_it(fit: Fit) -> None:
    run = fit(**SETTINGS).run
    figures = _figures(run)
    assert (figures[-1]["event"], figures[-1]["checkpoints"]) == ("average", 3)
    lines = run.metrics_path.read_text().splitlines(keepends=True)
    run.metrics_path.write_text("".join(lines[:-1]))
    for _ in range(2):
        fit(old=run, **SETTINGS)
        assert _figures(run) == figures


@pytest.mark.parametrize(("kept", "checkpoint"), [([], "last"), ([], "best"), (["step-000020"], "last")])
def test_a_finished_run_whose_last_checkpoints_were_removed_keeps_its_average(
    fit: Fit, kept: list[str], checkpoint: str
) -> None:
    run = fit(**SETTINGS).run
    best = summarise(run.folder).best
    for folder in run.checkpoints_folder.glob("step-*"):
        if folder.name not in kept:
            shutil.rmtree(folder)
    with expect_refusal(run, "with init"):
        fit(old=run, checkpoint=checkpoint, **SETTINGS)
    summary = summarise(run.folder)
    assert (summary.state, summary.step, summary.best) == ("finished", 40, best)
    assert summary.parameters is not None


# ------------------------------------------------------------------------------------- what cannot be continued


def test_a_run_is_claimed_while_it_trains(fit: Fit, tmp_path: Path) -> None:
    """A second process must not discard checkpoints either."""

    class Intruding(FakeTask):
        def validate(self, *args: Any) -> dict[str, float]:
            with pytest.raises(RunError, match="fake"), Run.open(tmp_path / "fake").claimed():
                pass
            return super().validate(*args)

    task = Intruding()
    run = fit(task, steps=20, keep=3).run
    assert task.validations == 2
    with run.claimed(), expect_refusal(run, str(run.folder)):
        fit(old=run, checkpoint="step-000010", steps=20, keep=3)
    assert fit(old=run, steps=25, keep=3).steps == 25


def test_a_run_of_other_data_or_another_model_loses_nothing(fit: Fit) -> None:
    class Refusing(FakeTask):
        def check_run(self, run: Run) -> None:
            raise RunError("other data")

    class Wider(FakeTask):
        def build_model(self, device: torch.device) -> torch.nn.Module:
            model = super().build_model(device)
            model.last = torch.nn.Linear(8, 5)
            return model

    run = fit(steps=20, keep=4, average=2).run
    for task, place in ((Refusing(), "other data"), (Wider(), "last.weight")):
        with expect_refusal(run, place):
            fit(task, old=run, checkpoint="step-000010", steps=30, keep=4, average=2)


@pytest.mark.parametrize("average", [0, 1])
def test_lost_moments_are_met_with_advice_that_can_be_followed(fit: Fit, average: int) -> None:
    run = fit(steps=20, keep=1, average=average).run
    (run.checkpoint("last") / "optimizer.safetensors").unlink()
    for step in run.checkpoints_folder.glob("step-*"):
        if step != run.checkpoint("last"):
            shutil.rmtree(step)
    with pytest.raises(RunError, match="with init") as caught:
        fit(old=run, steps=30, keep=1, average=average)
    assert "checkpoint step" not in str(caught.value)


# ------------------------------------------------------------------------------------- which run, and which recipe


def test_the_newest_run_of_the_seed_and_settings_is_resumed(fit: Fit, tmp_path: Path) -> None:
    """A sweep leaves many runs in one folder: each command goes on with its own."""
    assert run_to_resume(tmp_path, make_recipe()) is None
    runs = {key: fit(steps=5, **dict([key])).run.folder for key in (("seed", 1), ("seed", 2), ("clip", 0.5))}
    for (name, value), folder in runs.items():
        recipe = make_recipe(steps=9, keep=4, **{name: value})
        result = run_to_resume(tmp_path, recipe)
        assert result is not None
        assert result.folder == folder
    assert run_to_resume(tmp_path, make_recipe(seed=2, clip=0.25)) is None


@pytest.mark.parametrize("place", ["fake/phm-n4/the-good-one", "thesis/chapter-3/v001", "v001"])
def test_a_run_is_found_by_what_it_was_trained_with(fit: Fit, tmp_path: Path, place: str) -> None:
    """Whatever its folder is called, and whatever its user writes into its recipe's comments and decoding section."""
    run = fit(Interrupting(20), **SETTINGS).run
    moved = tmp_path / place
    moved.parent.mkdir(parents=True, exist_ok=True)
    run.folder.rename(moved)
    text = (moved / "recipe.yaml").read_text()
    (moved / "recipe.yaml").write_text("# the good one\n" + text.replace("beam: 5", "beam: 9"))
    for recipe in (make_recipe(**SETTINGS), Run.open(moved).recipe):
        found = run_to_resume(tmp_path, recipe)
        assert found is not None
        assert found.folder == moved
    edited = Run.open(moved).recipe
    assert train_task(FakeTask(), edited, tmp_path, old=found).steps == 40
    assert (moved / "recipe.yaml").read_text().startswith("# the good one\n")


def test_a_run_whose_recipe_was_changed_is_another_run(fit: Fit, tmp_path: Path) -> None:
    run = fit(Interrupting(20), **SETTINGS).run
    path = run.folder / "recipe.yaml"
    path.write_text(path.read_text().replace("warmup: 7", "warmup: 8"))
    assert run_to_resume(tmp_path, make_recipe(**SETTINGS)) is None
    changed = run_to_resume(tmp_path, make_recipe(**SETTINGS | {"warmup": 8}))
    assert changed is not None
    path.write_text(path.read_text().replace("heads: 8", "heads: 4"))
    with expect_refusal(run, r"model\.heads = 8"):
        train_task(FakeTask(), Run.open(run.folder).recipe, tmp_path, old=Run.open(run.folder))


FREE = [("training.patience", 7), ("training.save_every", 4), ("training.validate_every", 3), ("training.average", 2)]
FREE += [("training.log_every", 2), ("decoding.beam", 2)]


@pytest.mark.parametrize(("key", "value"), FREE)
def test_what_changes_no_step_may_be_changed(fit: Fit, key: str, value: float) -> None:
    """The weights are those of the unchanged training, and the run notes the change."""
    settings = {"steps": 20, "keep": 3}
    uninterrupted = fit(**settings).run
    run = fit(**(settings | {"steps": 12})).run
    section, _, name = key.partition(".")
    content = make_recipe(**settings).model_dump()
    content[section][name] = value
    recipe = type(run.recipe).model_validate(content)
    check_resumable(run, recipe)
    train_task(FakeTask(), recipe, Path("unused"), old=run)
    ends = [
        read_checkpoint(trained.checkpoint("last"), ("model", "optimizer")).tensors for trained in (uninterrupted, run)
    ]
    for group, tensors in ends[0].items():
        for tensor_name, tensor in tensors.items():
            assert torch.equal(tensor, ends[1][group][tensor_name])
    assert Run.open(run.folder).recipe == recipe
    assert [entry["device"] for entry in run.environment()["resumed"]] == ["cpu"]


def test_a_recipe_that_differs_is_refused_with_every_key(fit: Fit) -> None:
    run = fit(steps=5).run
    with pytest.raises(RecipeError) as refused:
        check_resumable(run, make_recipe(steps=9, learning_rate=0.5, clip=2.0, device="auto"))
    message = str(refused.value)
    with pytest.raises(RecipeError, match=r"training\.steps: 5 .*9"):  # a linear schedule ends there
        check_resumable(fit(steps=5, schedule="linear").run, make_recipe(steps=9, schedule="linear"))
    for place in ("training.learning_rate: 0.01 ", "training.clip: 0.0 ", str(run.folder / "recipe.yaml")):
        assert place in message
    assert "steps" not in message
    assert "device" not in message


def test_a_killed_run_goes_on_from_its_last_checkpoint(fit: Fit, uninterrupted: Run, tmp_path: Path) -> None:
    """A crash between two checkpoints loses what lies between, and no metric is doubled."""

    class Crashing(FakeTask):
        def loss(self, model: Any, batch: Any) -> Any:
            if batch.target_tokens and self.validations == 2:
                raise KeyError
            return super().loss(model, batch)

    with pytest.raises(KeyError):
        fit(Crashing(), **SETTINGS)
    run = Run.open(tmp_path / "fake/phm-n4")
    assert_equal(fit(old=run, **SETTINGS).run, uninterrupted)


def test_a_sole_checkpoint_that_a_crash_left_aside_is_resumed(fit: Fit) -> None:
    run = fit(steps=10, validate_every=100).run
    sole = run.checkpoint("last")
    sole.rename(sole.with_name(f".{sole.name}.0123abcd.old"))
    losses = [entry["step"] for entry in read_metrics(run.metrics_path)]
    assert fit(old=run, steps=15, validate_every=100).steps == 15
    assert [entry["step"] for entry in read_metrics(run.metrics_path)][: len(losses)] == losses


def test_a_run_that_has_nothing_left_to_train_is_pruned_and_swept(fit: Fit) -> None:
    run = fit(steps=20, keep=2).run
    right = files_below(run.folder)
    shutil.copytree(run.checkpoint("last"), run.checkpoints_folder / "step-000003")
    for name in (".last.0123abcd.tmp", ".best.4711abcd.tmp", ".step-000020.01234567.tmp/model.safetensors"):
        (run.checkpoints_folder / name).parent.mkdir(exist_ok=True)
        (run.checkpoints_folder / name).touch()
    (run.folder / ".metrics.jsonl.01234567.tmp").touch()
    fit(old=run, steps=20, keep=2)
    assert files_below(run.folder) == right


def test_a_damaged_environment_stops_the_resume_and_changes_nothing(fit: Fit) -> None:
    run = fit(steps=20, keep=4).run
    (run.folder / "environment.json").write_bytes(b"{}\n5\n")
    with expect_refusal(run, r"environment\.json"):
        fit(old=run, steps=30, keep=4)


@pytest.mark.parametrize(("moment", "shape"), [("step", None), ("exp_avg", (3,))])
def test_moments_that_are_not_the_models_areexpect_refusal(fit: Fit, moment: str, shape: tuple[int] | None) -> None:
    run = fit(steps=10).run
    folder, name = run.checkpoint("last"), f"{moment}.last.bias"
    result = read_checkpoint(folder, ["model", "optimizer"])
    del result.tensors["optimizer"][name]
    result.tensors["optimizer"] |= {} if shape is None else {name: torch.zeros(shape)}
    write_checkpoint(folder, result.tensors, result.state, read_manifest(folder)["model"])  # SHA-256 is right then
    with expect_refusal(run, rf"{moment}\.last\.bias"):
        fit(old=run, steps=20)


def test_a_run_without_a_checkpoint_is_resumed_before_an_older_one_that_is_finished(fit: Fit, tmp_path: Path) -> None:
    finished = fit(steps=5).run
    begun = Run.create(tmp_path, make_recipe(steps=5))
    before = files_below(finished.folder)
    result = run_to_resume(tmp_path, make_recipe(steps=5))
    assert result is not None
    assert result.folder == begun.folder
    assert fit(old=begun, steps=5).steps_now == 5
    assert files_below(finished.folder) == before
