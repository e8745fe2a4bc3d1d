"""``--best-of``, ``--budget`` and ``--margin``."""

import shutil
from pathlib import Path

import pytest

from phmctl.errors import RecipeError, RunError
from phmctl.files import write_sealed
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
    comparison = compare_runs(recipe="miniature", runs=root, best=KEY)
    assert {trials.model: trials.best for trials in comparison.trials} == {"real": 2e-3, "phm-n4": 4e-3}
    assert [len(variant.runs) for variant in comparison.variants] == [2, 2]
    recipes = [member.run.recipe for variant in comparison.variants for member in variant.runs]
    assert {recipe.training.learning_rate for recipe in recipes} == {2e-3, 4e-3}
    assert comparison.as_json()["trials"][1]["scores"] == pytest.approx({1e-3: 2.2, 2e-3: 1.95, 4e-3: 2.4})
    notes = "\n".join(comparison.notes())
    assert "at the end of the tried values" in notes  # the PHM model's best rate is the largest
    assert "different numbers" not in notes


def test_models_of_one_algebra_have_different_labels(tmp_path: Path) -> None:
    for width in (32, 64):
        for rate in (1e-3, 2e-3):
            settings = (f"model.width={width}", "model.feed_forward=64", f"{KEY}={rate}")
            make_run(tmp_path, settings=settings, loss=rate * width)
    comparison = compare_runs(recipe="miniature", runs=tmp_path, best=KEY)
    assert [trials.model for trials in comparison.trials] == ["real width=32", "real width=64"]
    assert {variant.label for variant in comparison.variants} == {trials.model for trials in comparison.trials}


def test_a_key_that_is_null_in_one_run(tmp_path: Path) -> None:
    for width in ("null", "16"):
        make_run(tmp_path, settings=[*SMALL, f"model.embedding_width={width}"])
    [trial] = compare_runs(recipe="miniature", runs=tmp_path, best="model.embedding_width").trials
    assert [*trial.scores] == [16, "None"]
    assert str(trial)


def test_trainings_limited_to_the_same_minutes_are_one_model(tmp_path: Path) -> None:
    for steps, seed in ((100, 1), (90, 2)):
        run = make_run(tmp_path, settings=[*SMALL, f"training.steps={steps}"], seed=seed)
        environment = run.environment() | {"minutes": 5.0, "steps": steps}
        write_sealed(run.folder / "environment.json", environment)
    [variant] = compare_runs(recipe="miniature", runs=tmp_path).variants
    assert len(variant.runs) == 2
    make_run(tmp_path, settings=[*SMALL, "training.steps=80"])
    labels = [variant.label for variant in compare_runs(recipe="miniature", runs=tmp_path).variants]
    assert labels == ["real minutes=5.0", "real minutes=0.0"]
    [trial] = compare_runs(recipe="miniature", runs=tmp_path, best="training.minutes").trials
    assert [*trial.scores] == [0.0, 5.0]


def test_unequal_trials_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rate in (1e-3, 2e-3):
        make_run(tmp_path, settings=[*SMALL, f"{KEY}={rate}"], loss=rate)
    unvalidated = make_run(tmp_path, settings=[*SMALL, f"{KEY}=0.0005"])
    unvalidated.metrics_path.write_text("")
    shutil.rmtree(unvalidated.checkpoints_folder)
    make_run(tmp_path, settings=[*PHM, f"{KEY}=0.001"])
    assert "real 2" in "\n".join(compare_runs(recipe="miniature", runs=tmp_path, best=KEY).notes())
    make_run(tmp_path, settings=[*SMALL, f"{KEY}=0.001"], seed=2, loss=9.0)  # the other rate has no seed 2
    _, trial = compare_runs(recipe="miniature", runs=tmp_path, best=KEY).trials
    assert trial.scores == {1e-3: 1e-3, 2e-3: 2e-3}
    failed = make_run(tmp_path, settings=[*SMALL, f"{KEY}=0.001"], loss=8.0)  # newer, but failed
    (failed.folder / "attempt.json").write_text('{"error": "it failed"}')
    assert compare_runs(recipe="miniature", runs=tmp_path, best=KEY).trials[1].scores == {1e-3: 1e-3, 2e-3: 2e-3}
    make_run(tmp_path, settings=[*SMALL, f"{KEY}=0.004"], seed=3, loss=1e-4)  # a seed that the other values lack
    capsys.readouterr()
    compare_runs(recipe="miniature", runs=tmp_path, best=KEY)
    assert capsys.readouterr().err.count("warning") == 2  # and one for the run without a validation
    with pytest.raises(RecipeError):
        compare_runs(recipe="miniature", runs=tmp_path, best="training.seed")
    with pytest.raises(RunError, match=r"model\.n"):  # each model has a single n
        compare_runs(recipe="miniature", runs=tmp_path, best="model.n")


def test_a_budget_of_parameters(root: Path, tmp_path: Path) -> None:
    make_run(tmp_path, settings=SMALL)
    make_run(tmp_path, settings=PHM)
    with pytest.raises(RunError):  # no model costs as much as the dense one
        compare_runs(recipe="miniature", runs=tmp_path, budget="parameters")
    assert len(compare_runs(recipe="miniature", runs=tmp_path, budget="minutes").variants) == 2
    make_run(tmp_path, settings=(*SMALL, "model.dropout=0.3"))
    comparison = compare_runs(recipe="miniature", runs=tmp_path, budget="parameters")
    assert {variant.first.run.recipe.model.algebra for variant in comparison.variants} == {"real"}


def test_a_margin_adds_a_non_inferiority_test(root: Path) -> None:
    plain, small, large = (
        compare_runs(recipe="miniature", runs=root, best=KEY, margin=margin) for margin in (None, 0.0, 100.0)
    )
    [(label, tests)] = large.tests.items()
    assert all(test.estimate.p_not_inferior < 0.01 for test in tests)
    for without, zero in zip(plain.tests[label], small.tests[label], strict=True):
        half = without.estimate.p_value / 2  # a margin of zero is one side of the two-sided test
        expected = half if without.estimate.difference.value > 0 else 1 - half
        assert zero.estimate.p_not_inferior == pytest.approx(expected, abs=1e-3)
    assert [len(list(comparison.tables())[1].columns) for comparison in (plain, small)] == [5, 6]
    assert large.as_json()["margin"] == 100
    for margin in (-1.0, float("nan"), float("inf")):
        with pytest.raises(RunError):
            compare_runs(recipe="miniature", runs=root, margin=margin)
