import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import phmctl
from phmctl.answering.translator import Translator
from phmctl.errors import OutputError, RecipeError, RunError, UserError
from phmctl.probes import probe
from phmctl.recipe.loading import load_recipe, resolve
from phmctl.recipe.schema import TranslationRecipe
from phmctl.runs import Run
from phmctl.tasks.translation import Evaluation
from tests.calls import call
from tests.tasks.translation.runs import make_run


@pytest.fixture(scope="module")
def result(tiny_recipe: TranslationRecipe, miniature_data: Path, tmp_path_factory: pytest.TempPathFactory):
    recipe = tiny_recipe.model_dump()
    settings = {"training.steps": 2, "training.average": 0, "training.validate_every": 2, "training.save_every": 2}
    runs = tmp_path_factory.mktemp("runs")
    return phmctl.train(recipe, seed=3, settings=settings, data=str(miniature_data), runs=str(runs))


def test_training_and_loading_in_a_program(result, capfd: pytest.CaptureFixture[str]) -> None:
    assert (result.steps, result.exit_code) == (2, 0)
    assert result.run.recipe.training.seed == 3
    model = phmctl.load(result.run.folder, device="cpu")
    assert len(model.translate(["Sophie wandert."], beam=1)) == 1
    assert Run.open(result.run.folder).recipe == result.run.recipe
    assert capfd.readouterr() == ("", "")


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_default_dtype_does_not_decide_the_results(
    dtype: torch.dtype, result, miniature_data: Path, tmp_path: Path
) -> None:
    expected = phmctl.load(result.run.folder, device="cpu").translate(["Sophie wandert."], beam=2, n_best=2)
    settings = {"training.steps": 2, "training.average": 0, "training.validate_every": 2, "training.save_every": 2}
    with default_dtype(dtype):
        loaded = phmctl.load(result.run.folder, device="cpu")
        assert loaded.translate(["Sophie wandert."], beam=2, n_best=2) == expected
        recipe = result.run.recipe.model_dump()
        trained = phmctl.train(recipe, settings=settings, data=miniature_data, runs=tmp_path)
        assert torch.get_default_dtype() == dtype
    assert trained.run.weights("auto").sha256 == result.run.weights("auto").sha256
    assert {parameter.dtype for parameter in loaded.engine.model.parameters()} == {torch.float32}


def test_scores_equal_those_of_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = make_run(tmp_path)
    report = phmctl.evaluate(str(run.folder), beam=1)
    assert isinstance(report, Evaluation)
    assert report.decoding.beam == 1
    assert capfd.readouterr() == ("", "")
    printed = call("eval", run.folder, "--beam", 1, "--json").stdout
    assert json.loads(printed) == json.loads(json.dumps(report.as_json()))
    with pytest.raises(UserError, match=r"^table: "):
        phmctl.evaluate(run.folder, table="new.tsv")
    with pytest.raises(RunError, match="nothing"):
        phmctl.evaluate(tmp_path / "nothing")


def test_a_run_that_cannot_be_written_is_refused_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "answer", lambda *_, **__: pytest.fail("decoded"))
    run = make_run(tmp_path)
    run.results_folder.rmdir()
    run.results_folder.touch()
    with pytest.raises(OutputError):
        phmctl.evaluate(run.folder)
    with pytest.raises(OutputError):
        probe(run.folder)


def test_preparing_is_silent_by_default(
    miniature_data: Path, tiny_recipe: TranslationRecipe, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    text = ["Ein Mann liest .", "Zwei Hunde schlafen .", "Eine Frau singt ."]
    pairs = {}
    for split, end in (("train", "a"), ("valid", "b")):
        pairs[split] = tmp_path / f"{split}.de", tmp_path / f"{split}.en"
        for path in pairs[split]:
            path.write_text("".join(f"{line} {end}\n" for line in text))
    made = phmctl.prepare("mine", data=tmp_path / "data", files=pairs, vocabulary=270, max_tokens=30)
    assert (made.folder / "manifest.json").is_file()
    assert capfd.readouterr() == ("", "")
    again = phmctl.prepare("mine", data=str(tmp_path / "data"), files=pairs, vocabulary=270, max_tokens=30, quiet=False)
    assert again.folder == made.folder
    assert "up to date" in capfd.readouterr().err


def test_a_recipe_by_name_path_keys_or_itself(tmp_path: Path) -> None:
    expected = load_recipe("miniature", ["training.steps=7", "model.n=4", "model.algebra=phm"])
    path = tmp_path / "mine.yaml"
    path.write_text(json.dumps(expected.model_dump()))
    keys = load_recipe("miniature").model_dump()
    before = json.dumps(keys)
    settings = {"training.steps": 7, "model.n": 4, "model.algebra": "phm"}
    for recipe in ("miniature", keys, load_recipe("miniature")):
        assert resolve(recipe, settings=settings) == expected
        assert resolve(recipe, settings=[f"{key}={value}" for key, value in settings.items()]) == expected
    assert json.dumps(keys) == before
    assert resolve(path) == resolve(str(path)) == expected
    assert resolve(expected) is expected


def test_a_wrong_setting_is_reported_as_the_program_wrote_it() -> None:
    with pytest.raises(RecipeError, match=r"settings\['training.stepps'\]"):
        phmctl.train("miniature", settings={"training.stepps": 3})


def test_arguments_may_have_the_types_of_a_program(tmp_path: Path) -> None:
    def table(name: str, header: str, *rows: str) -> Path:
        path = tmp_path / name
        path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        return path

    data, small = tmp_path / "data", {"vocabulary": 270, "max_tokens": 30}
    pairs = {name: table(f"{name}.tsv", "id\tde\ten", f"1\tEin {name} .\tA {name} .") for name in ("train", "valid")}
    made = phmctl.prepare("talks", data=data, files=pairs, columns=["de", "en"], languages=("de", "en"), **small)
    assert made.manifest["splits"]["train"]["kept"] == 1
    labelled = {name: table(f"{name}.csv", "text,mood", f"so {name},a", f"not {name},b") for name in pairs}
    arguments = {"recipe": "agreement-resplit", "table": labelled, "text": "text", "label": "mood"}
    assert phmctl.prepare("moods", data=data, **arguments).manifest["labels"] == ["a", "b"]
    run = make_run(tmp_path / "runs")
    source, reference = table("t.de", "Ein Hund ."), table("t.en", "A dog .")
    assert phmctl.evaluate(run.folder, source=source, reference=reference).as_json()["sentences"] == 1
    for wrong in (5, [5], ("a", 5), {"source": "a", "target": "b"}):
        with pytest.raises(UserError):
            phmctl.prepare("moods", data=data, files={"train": wrong})


def test_a_section_in_settings_sets_the_keys_that_it_contains() -> None:
    recipe = resolve("miniature", ["model.n=4", "model.algebra=phm"], {"model": {"dropout": 0.3}})
    assert recipe == resolve("miniature", ["model.n=4", "model.algebra=phm", "model.dropout=0.3"])
    assert recipe == load_recipe("miniature", ["model={n: 4, algebra: phm, dropout: 0.3}"])
    with pytest.raises(RecipeError):
        resolve("miniature", ["model.n=4"], {"model": {"n": 2}})
    with pytest.raises(RecipeError):
        resolve("miniature", [], "training.steps=3")
    with pytest.raises(RecipeError):
        resolve("miniature", settings=[5])
