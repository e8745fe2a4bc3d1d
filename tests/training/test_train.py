"""The real task, end to end: a tiny Transformer learns a tiny language, and resumes to the last bit."""

from pathlib import Path

import pytest

from phmctl.data.tokenizer import TokenizerPair
from phmctl.errors import DataError, RecipeError
from phmctl.recipe.schema import Recipe, TranslationRecipe
from phmctl.runs.metrics import read_metrics
from phmctl.training.train import TrainingResult, train
from tests.training.copying import copying_recipe
from tests.training.test_resume import _contents, _figures


def _train(recipe: Recipe, data: Path, runs: Path, **options: object) -> TrainingResult:
    return train(recipe, data=data, runs=runs, quiet=True, **options)


@pytest.mark.parametrize("n", [1, 4])
def test_a_tiny_transformer_learns_a_dictionary(copying_data: Path, tmp_path: Path, n: int) -> None:
    result = _train(copying_recipe(n=n), copying_data, tmp_path)
    losses = [entry["loss"] for entry in read_metrics(result.run.metrics_path) if entry["event"] == "validation"]
    assert losses[-1] < 0.15 < 1.0 < losses[0]


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
