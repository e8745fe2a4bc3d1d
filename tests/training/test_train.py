"""The real task, end to end: a tiny Transformer learns a tiny language, and resumes to the last bit."""

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from torch import nn

from phmctl import PHMLinear
from phmctl.data.tokenizer import TokenizerPair
from phmctl.errors import DataError, RecipeError
from phmctl.recipe.loading import load_recipe, resolve
from phmctl.recipe.schema import Recipe, TranslationRecipe
from phmctl.runs.metrics import read_metrics
from phmctl.training.measured import EXECUTIONS
from phmctl.training.train import TrainingResult, train, train_task
from tests.conftest import TINY
from tests.training.copying import copying_recipe
from tests.training.fake import FakeTask, make_recipe
from tests.training.test_resume import _contents, _figures
from tests.training.test_trainer import _without_dropout


def _train(recipe: Recipe, data: Path, runs: Path, **options: object) -> TrainingResult:
    return train(recipe, data=data, runs=runs, quiet=True, **options)


@pytest.mark.parametrize("n", [1, 4])
def test_a_tiny_transformer_learns_a_dictionary(copying_data: Path, tmp_path: Path, n: int) -> None:
    result = _train(copying_recipe(n=n), copying_data, tmp_path)
    losses = [entry["loss"] for entry in read_metrics(result.run.metrics_path) if entry["event"] == "validation"]
    assert losses[-1] < 0.15 < 0.5 < losses[0]


def test_the_run_needs_nothing_else(copying_data: Path, tmp_path: Path) -> None:
    run = _train(copying_recipe(steps=1), copying_data, tmp_path).run
    tokenizers = TokenizerPair.load(run.tokenizer_folder)
    text = (run.text_folder / "test.source").read_text().splitlines()
    assert len(text) == 60
    assert tokenizers.source.decode(tokenizers.source.encode(text[:1])[0]) == text[0]


def test_resuming_the_real_task_is_exact(copying_data: Path, tmp_path: Path) -> None:
    """With dropout, across an epoch's end, accumulated: the longer run equals the one that went there in two goes."""
    settings = {"accumulate": 2, "save_every": 10, "validate_every": 10, "log_every": 10, "keep": 2}
    whole = _train(copying_recipe(steps=30, **settings), copying_data, tmp_path / "whole")
    _train(copying_recipe(steps=10, **settings), copying_data, tmp_path / "parts")
    second = _train(copying_recipe(steps=30, **settings), copying_data, tmp_path / "parts", resume=True)
    assert second.steps == 30
    assert _contents(second.run) == _contents(whole.run)
    assert _figures(second.run) == _figures(whole.run)


def test_a_run_can_be_named_to_resume(copying_data: Path, tmp_path: Path) -> None:
    first = _train(copying_recipe(steps=5), copying_data, tmp_path)
    _train(copying_recipe(steps=5), copying_data, tmp_path)
    resumed = _train(copying_recipe(steps=8), copying_data, tmp_path, run=first.run)
    assert (resumed.run.folder, resumed.steps) == (first.run.folder, 8)


def test_resuming_with_another_recipe_is_refused(copying_data: Path, tmp_path: Path) -> None:
    first = _train(copying_recipe(steps=5), copying_data, tmp_path)
    with pytest.raises(RecipeError, match=r"model\.dropout: 0\.1 in the run, 0\.3 now"):
        _train(copying_recipe(steps=5, dropout=0.3), copying_data, tmp_path, run=first.run)


def test_unprepared_data_names_the_command_and_leaves_no_run(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="phmctl prepare-data copying"):
        _train(copying_recipe(), tmp_path / "nothing", tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_result_as_json(copying_data: Path, tmp_path: Path) -> None:
    result = _train(copying_recipe(steps=2), copying_data, tmp_path).as_json()
    assert result.keys() == {"run", "steps", "steps_now", "seconds", "best_score", "best_step", "interrupted"}
    assert (result["steps"], result["interrupted"]) == (2, False)


def test_a_rank_that_gains_nothing_is_said_before_training(
    tiny_recipe: TranslationRecipe, miniature_data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tiny_recipe.model.model_copy(update={"compose_heads": "bilinear", "composition_rank": 64})
    training = tiny_recipe.training.model_copy(update={"steps": 1, "validate_every": 1, "save_every": 1, "average": 0})
    recipe = tiny_recipe.model_copy(update={"model": model, "training": training})
    train(recipe, data=miniature_data, runs=tmp_path)
    assert "warning: model.composition_rank = 64 is above 32" in capsys.readouterr().err


def test_generators_threads_and_environment_are_left_as_they_were(tmp_path: Path) -> None:
    recipe = make_recipe(steps=2, threads=torch.get_num_threads() + 1)
    torch.optim.Adam([nn.Parameter(torch.zeros(1))])  # torch's first optimiser sets a variable of its own
    state, threads, environment = torch.get_rng_state(), torch.get_num_threads(), dict(os.environ)
    run = train_task(FakeTask(), recipe, tmp_path, quiet=True).run
    assert run.environment()["threads"] == threads + 1
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_num_threads() == threads
    assert dict(os.environ) == environment


def test_a_compiled_model_trains_as_an_eager_one_and_goes_on(tmp_path: Path) -> None:
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler")
    task = FakeTask()
    task.build_model = _without_dropout  # type: ignore[method-assign]
    runs = [
        train_task(task, make_recipe(steps=8, compile=compiled), tmp_path / str(compiled), quiet=True).run
        for compiled in (False, True)
    ]
    train_task(task, make_recipe(steps=12, compile=True), tmp_path, quiet=True, old=runs[1])
    train_task(task, make_recipe(steps=12), tmp_path, quiet=True, old=runs[0])
    eager, compiled = ([entry["loss"] for entry in read_metrics(run.metrics_path)] for run in runs)
    assert eager == pytest.approx(compiled, rel=1e-5)
    assert len(eager) > 4


def test_compiling_without_a_compiler_is_refused_before_a_run_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(RecipeError) as refused:
        train_task(FakeTask(), make_recipe(compile=True), tmp_path, quiet=True)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_sharding_is_refused_in_one_line() -> None:
    keys = make_recipe().model_dump()
    keys["training"]["sharding"] = "full"
    with pytest.raises(RecipeError) as refused:
        resolve(keys)
    assert "training.sharding" in str(refused.value)
    assert "\n" not in str(refused.value)


FACTORS = ("model.algebra=phm", "model.n=4", "model.parametrization=factors", "training.keep=9")


def test_a_run_keeps_the_executions_that_were_measured_and_goes_on_with_them(
    miniature_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def tuned(model: nn.Module, tokens: int) -> dict[str, str]:
        assert tokens > 1
        names = [name for name, module in model.named_modules() if isinstance(module, PHMLinear)]
        return dict.fromkeys(names, "rank") | {names[0]: "dense"}

    monkeypatch.setattr("phmctl.training.measured.tune", tuned)
    recipe = load_recipe("miniature", [*FACTORS, *TINY, "training.steps=3"])
    run = train(recipe, data=miniature_data, runs=tmp_path, quiet=True).run
    kept = json.loads((run.folder / EXECUTIONS).read_text())
    assert set(kept.values()) == {"rank", "dense"}
    monkeypatch.setattr("phmctl.training.measured.tune", lambda *_, **__: pytest.fail("it is in the run"))
    applied: list[dict[str, str]] = []
    monkeypatch.setattr("phmctl.training.measured.set_executions", lambda model, names: applied.append(names))
    train(load_recipe("miniature", [*FACTORS, *TINY, "training.steps=5"]), data=miniature_data, run=run, quiet=True)
    assert applied == [kept]
