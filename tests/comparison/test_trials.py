"""Fair budgets: each model at its best rate, and models of equal cost."""

import json
import shutil
from pathlib import Path

import pytest

from phmctl.errors import RecipeError, RunError
from tests.comparison.runs import REFERENCES, make_run, worse
from tests.references import compare_runs

SMALL = ("model.width=32", "model.feed_forward=64")
PHM = (*SMALL, "model.algebra=phm", "model.n=4")
KEY = "training.learning_rate"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models of two seeds and three rates; the losses are such that one seed alone would mislead."""
    root = tmp_path_factory.mktemp("trials")
    losses = {
        "real": {1e-3: (2.0, 2.4), 2e-3: (1.9, 2.0), 4e-3: (1.8, 3.0)},
        "phm": {1e-3: (2.6, 2.6), 2e-3: (2.5, 2.5), 4e-3: (2.1, 2.1)},
    }
    for name, settings in (("real", SMALL), ("phm", PHM)):
        for rate, seeds in losses[name].items():
            for seed, loss in enumerate(seeds, start=1):
                lines = worse(REFERENCES, 3 if rate == 4e-3 else 6)
                make_run(root, settings=[*settings, f"{KEY}={rate}"], seed=seed, hypotheses=lines, loss=loss)
    return root


def test_each_model_is_compared_at_its_best_rate_on_valid(root: Path) -> None:
    found = compare_runs(recipe="miniature", runs=root, best=KEY)
    assert {each.model: each.best for each in found.trials} == {"real": 2e-3, "phm-n4": 4e-3}
    assert [len(variant.runs) for variant in found.variants] == [2, 2]
    assert {one.run.recipe.training.learning_rate for variant in found.variants for one in variant.runs} == {2e-3, 4e-3}
    assert found.as_json()["trials"][1]["scores"] == pytest.approx({1e-3: 2.2, 2e-3: 1.95, 4e-3: 2.4})
    notes = "\n".join(found.notes())
    assert "at the end of the tried values" in notes  # the PHM model's best rate is the largest
    assert "different numbers" not in notes


def test_models_of_one_algebra_are_told_apart(tmp_path: Path) -> None:
    for width in (32, 64):
        for rate in (1e-3, 2e-3):
            settings = (f"model.width={width}", "model.feed_forward=64", f"{KEY}={rate}")
            make_run(tmp_path, settings=settings, loss=rate * width)
    found = compare_runs(recipe="miniature", runs=tmp_path, best=KEY)
    assert [each.model for each in found.trials] == ["real width=32", "real width=64"]
    assert {each.label for each in found.variants} == {each.model for each in found.trials}


def test_a_key_that_is_null_in_one_run(tmp_path: Path) -> None:
    for width in ("null", "16"):
        make_run(tmp_path, settings=[*SMALL, f"model.embedding_width={width}"])
    [trial] = compare_runs(recipe="miniature", runs=tmp_path, best="model.embedding_width").trials
    assert [*trial.scores] == [16, "None"]
    assert str(trial)


def test_trainings_of_as_many_minutes_are_one_model(tmp_path: Path) -> None:
    for steps, seed in ((100, 1), (90, 2)):
        run = make_run(tmp_path, settings=[*SMALL, f"training.steps={steps}"], seed=seed)
        environment = run.environment() | {"minutes": 5.0, "steps": steps}
        (run.folder / "environment.json").write_text(json.dumps(environment))
    [variant] = compare_runs(recipe="miniature", runs=tmp_path).variants
    assert len(variant.runs) == 2
    make_run(tmp_path, settings=[*SMALL, "training.steps=80"])
    labels = [variant.label for variant in compare_runs(recipe="miniature", runs=tmp_path).variants]
    assert labels == ["real minutes=5.0", "real minutes=0.0"]
    [trial] = compare_runs(recipe="miniature", runs=tmp_path, best="training.minutes").trials
    assert [*trial.scores] == [0.0, 5.0]


def test_unequal_trials_are_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rate in (1e-3, 2e-3):
        make_run(tmp_path, settings=[*SMALL, f"{KEY}={rate}"], loss=rate)
    begun = make_run(tmp_path, settings=[*SMALL, f"{KEY}=0.0005"])
    begun.metrics_path.write_text("")
    shutil.rmtree(begun.checkpoints_folder)
    make_run(tmp_path, settings=[*PHM, f"{KEY}=0.001"])
    assert "real 2" in "\n".join(compare_runs(recipe="miniature", runs=tmp_path, best=KEY).notes())
    make_run(tmp_path, settings=[*SMALL, f"{KEY}=0.001"], seed=2, loss=9.0)  # the other rate has no seed 2
    _, trial = compare_runs(recipe="miniature", runs=tmp_path, best=KEY).trials
    assert trial.scores == {1e-3: 1e-3, 2e-3: 2e-3}
    early = make_run(tmp_path, settings=[*SMALL, f"{KEY}=0.001"], loss=8.0)  # newer, but it failed
    (early.folder / "attempt.json").write_text('{"error": "it failed"}')
    assert compare_runs(recipe="miniature", runs=tmp_path, best=KEY).trials[1].scores == {1e-3: 1e-3, 2e-3: 2e-3}
    make_run(tmp_path, settings=[*SMALL, f"{KEY}=0.004"], seed=3, loss=1e-4)  # of no seed that the others have
    capsys.readouterr()
    compare_runs(recipe="miniature", runs=tmp_path, best=KEY)
    assert capsys.readouterr().err.count("warning") == 2  # and one for the run without a validation
    with pytest.raises(RecipeError):
        compare_runs(recipe="miniature", runs=tmp_path, best="training.seed")
    with pytest.raises(RunError, match=r"model\.n"):  # of which each model has one value
        compare_runs(recipe="miniature", runs=tmp_path, best="model.n")


def test_a_budget_of_parameters(root: Path, tmp_path: Path) -> None:
    make_run(tmp_path, settings=SMALL)
    make_run(tmp_path, settings=PHM)
    with pytest.raises(RunError):  # nobody spends what the dense model does
        compare_runs(recipe="miniature", runs=tmp_path, budget="parameters")
    assert len(compare_runs(recipe="miniature", runs=tmp_path, budget="minutes").variants) == 2
    make_run(tmp_path, settings=(*SMALL, "model.dropout=0.3"))
    found = compare_runs(recipe="miniature", runs=tmp_path, budget="parameters")
    assert {variant.first.run.recipe.model.algebra for variant in found.variants} == {"real"}


def test_a_margin_asks_whether_a_model_is_not_inferior(root: Path) -> None:
    plain, small, large = (
        compare_runs(recipe="miniature", runs=root, best=KEY, margin=each) for each in (None, 0.0, 100.0)
    )
    [(label, tests)] = large.tests.items()
    assert all(test.found.p_not_inferior < 0.01 for test in tests)
    for one, other in zip(plain.tests[label], small.tests[label], strict=True):
        half = one.found.p_value / 2  # with no margin it is one side of the two-sided test
        expected = half if one.found.difference.value > 0 else 1 - half
        assert other.found.p_not_inferior == pytest.approx(expected, abs=1e-3)
    assert [len(list(each.tables())[1].columns) for each in (plain, small)] == [5, 6]
    assert large.as_json()["margin"] == 100
    for wrong in (-1.0, float("nan"), float("inf")):
        with pytest.raises(RunError):
            compare_runs(recipe="miniature", runs=root, margin=wrong)
