"""The real task, end to end: a tiny Transformer learns a tiny language, and resumes to the last bit."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from phmctl.errors import RecipeError, RunError
from phmctl.runs.results import read_metrics
from phmctl.tasks.base import Cost, Rows
from phmctl.training import optimiser as measured
from phmctl.training.train import train, train_task
from tests.training.copying import copying_recipe
from tests.training.fake import FakeTask, make_recipe


def test_a_tiny_transformer_learns_a_dictionary(copying_data: Path, tmp_path: Path) -> None:
    """A dense one does in tests/test_distillation.py."""
    recipe = copying_recipe(n=4, steps=200, warmup=20, validate_every=50)
    run = train(recipe, data=copying_data, runs=tmp_path).run
    losses = [entry["loss"] for entry in read_metrics(run.metrics_path) if entry["event"] == "validation"]
    assert losses[-1] < 0.5 < 2 < losses[0]


def test_generators_are_left_as_they_were(tmp_path: Path) -> None:
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    run = train_task(FakeTask(), make_recipe(steps=2, threads=threads), tmp_path).run
    noted = run.environment()
    assert (noted["threads"], noted["device"]) == (threads, "cpu")
    assert torch.equal(torch.get_rng_state(), state)


class Drawing(FakeTask):
    """A task during whose training, but not its forward passes, another thread draws random numbers."""

    def cost(self, rows: Rows) -> Cost:
        torch.rand(3)
        return super().cost(rows)


def test_draws_between_steps_change_nothing(tmp_path: Path) -> None:
    shas = set()
    for task, seed in ((FakeTask(), 1), (Drawing(), 2)):
        torch.manual_seed(seed)
        shas.add(train_task(task, make_recipe(steps=4), tmp_path).run.weights("last").sha256)
    assert len(shas) == 1


def test_a_compiled_model_trains_as_an_eager_one_and_goes_on(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    logs = []
    for compiled in (False, True):
        run = None
        for steps in (8, 12):
            recipe = make_recipe(steps=steps, compile=compiled)
            run = train_task(FakeTask(dropout=0.0), recipe, tmp_path / str(compiled), old=run).run
        logs.append([entry["loss"] for entry in read_metrics(run.metrics_path)])
    assert logs[0] == pytest.approx(logs[1], rel=1e-5)
    assert len(logs[0]) > 4


def test_rates_of_another_model_are_refused(tmp_path: Path) -> None:
    recipe = make_recipe(steps=2, rates="structured")
    run = train_task(FakeTask(), recipe, tmp_path).run
    path = run.folder / measured.RATES
    kept = json.loads(path.read_text())
    path.write_text(json.dumps(dict([*kept.items()][1:])))
    with pytest.raises(RunError, match=r"rates\.json"):
        train_task(FakeTask(), recipe, tmp_path, old=run)


def test_compiling_without_a_compiler_is_refused_before_a_run_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RecipeError) as refused:
        train_task(FakeTask(), make_recipe(compile=True), tmp_path)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("settings", "remarks"),
    [
        ({"steps": 6, "warmup": 9}, 1),
        ({"steps": 6, "warmup": 6}, 0),
        ({"steps": 9, "warmup": 1, "schedule": "linear", "patience": 1}, 1),
        ({"steps": 9, "warmup": 1, "schedule": "constant", "patience": 1}, 0),
    ],
)
def test_a_schedule_that_is_cut_is_named(
    settings: dict[str, Any], remarks: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train_task(FakeTask(), make_recipe(validate_every=3, **settings), tmp_path)
    lines = capsys.readouterr().err.splitlines()
    assert sum("warm-up" in line or "linear schedule" in line for line in lines) == remarks
