"""What earlier versions wrote loads: tests/data/old has preparations and runs of before formats had numbers."""

import shutil
from pathlib import Path

import pytest

from phmctl import verbs
from phmctl.data.prepared.folder import PreparedData
from phmctl.data.prepared.manifest import FORMAT
from phmctl.errors import DataError, RecipeError, RunError
from phmctl.recipe.loading import dump_recipe, load_recipe, parse_recipe
from phmctl.runs import Run
from phmctl.tasks.registry import kind_of

OLD = Path(__file__).parent / "data" / "old"
RUNS = {"translation": "tiny/phm-n2", "classification": "tinylabels/phm-n2", "rule": "rotation-3d/phm-n3"}


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """A copy of the old files, which may be written."""
    return Path(shutil.copytree(OLD, tmp_path / "old"))


@pytest.mark.parametrize("task", ["translation", "classification"])
def test_an_old_preparation_is_trained_on(old: Path, task: str) -> None:
    recipe = Run.open(old / "runs" / RUNS[task] / "v001").recipe
    prepared = PreparedData.find(recipe.data, old)
    assert prepared.manifest["format"] == FORMAT
    cleaning = prepared.manifest["settings"]["cleaning"]
    assert (cleaning["max_ratio"], cleaning["duplicates"], cleaning["keep"]) == (0.0, "drop", "start")
    assert [len(prepared.split(name)) for name in ("train", "valid", "test")] == [60, 6, 6]
    text = (OLD / "in" / "test.source").read_text().splitlines()
    assert prepared.split("test").texts[0] == text
    assert [prepared.tokenizer.decode(row) for row in prepared.split("test").sides[0]] == text
    assert prepared.labels == ([] if task == "translation" else ["no", "yes"])


@pytest.mark.parametrize("task", RUNS)
def test_an_old_run_is_scored(old: Path, task: str) -> None:
    run = Run.open(old / "runs" / RUNS[task] / "v001")
    assert run.recipe.task == task
    document = verbs.evaluate(run.folder, device="cpu").as_json()
    assert document["checkpoint"] == f"step-{run.recipe.training.steps:06d}"
    kind_of(run.recipe).open(run.recipe, old).check_run(run)


def test_an_old_run_is_not_continued(old: Path) -> None:
    run = Run.open(old / "runs" / RUNS["translation"] / "v001")
    with pytest.raises(RunError, match="version before 0.1.0"):
        verbs.train(run.recipe, data=old, runs=old / "runs", resume=True, steps=9, device="cpu")


@pytest.mark.parametrize(("task", "answer"), [("translation", ""), ("classification", "no")])
def test_an_old_run_answers(old: Path, task: str, answer: str) -> None:
    run = Run.open(old / "runs" / RUNS[task] / "v001")
    predictor = kind_of(run.recipe).predictor(run, device="cpu")
    found = list(predictor.lines(predictor.predict(["ba be", ""], advance=lambda _: None)))
    assert found[1] == ""
    assert not answer or found[0] == answer


def test_a_manifest_of_a_later_format_is_refused(old: Path) -> None:
    path = old / "prepared" / "tiny" / "word-40-8" / "manifest.json"
    path.write_text(path.read_text().replace('"phmctl-prepared-1"', "4"))
    with pytest.raises(DataError, match=r"is of format 4, and this phmctl reads up to 3: take the version"):
        PreparedData.open(path.parent)


def test_a_run_may_name_the_pointer_that_it_has_not() -> None:
    """Models could have one before the first release."""
    recipe = load_recipe("miniature")
    text = dump_recipe(recipe)
    assert parse_recipe(text.replace("model:", "model:\n  pointer: false"), where="recipe.yaml") == recipe
    with pytest.raises(RecipeError, match=r"unknown key 'model\.pointer'"):
        parse_recipe(text.replace("model:", "model:\n  pointer: true"), where="recipe.yaml")


def test_a_recipe_has_the_number_of_its_format() -> None:
    recipe = load_recipe("miniature")
    text = dump_recipe(recipe)
    assert text.startswith("format: 1\n")
    assert parse_recipe(text, where="r.yaml") == recipe
    with pytest.raises(RecipeError, match=r"r\.yaml:1: format 2, and this phmctl reads recipes of format 1: take"):
        parse_recipe(text.replace("format: 1", "format: 2"), where="r.yaml")
