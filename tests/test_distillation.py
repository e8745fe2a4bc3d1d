"""Students of a translator: their initial weights, their training text, and refused options."""

from pathlib import Path
from typing import Any

import pytest
import torch

import phmctl
from phmctl.algebra.kronecker import nearest_sum
from phmctl.answering.translator import Translator
from phmctl.data.card import Cleaning
from phmctl.data.prepared import PreparedData
from phmctl.errors import RecipeError, RunError, UserError
from phmctl.runs import Run
from phmctl.storage import read_checkpoint
from tests.calls import call
from tests.conftest import TINY
from tests.training.copying import copying_recipe


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory, copying_data: Path) -> Run:
    recipe = copying_recipe(n=1, steps=200, warmup=20)
    return phmctl.train(recipe, data=copying_data, runs=tmp_path_factory.mktemp("runs")).run


def test_a_translator_teaches(teacher: Run, copying_data: Path, tmp_path: Path) -> None:
    result = phmctl.distil(teacher.folder, n=4, steps=200, data=copying_data, runs=tmp_path)
    student = result.run.recipe
    assert (student.model.algebra, student.model.n) == ("phm", 4)
    data = PreparedData.find(student.data, copying_data)
    assert 1700 < len(data.split("train")) <= 1800  # each line with its reference, and with the teacher's translation
    folder = copying_data / "taught" / student.data.card
    translations = (folder / "train.teacher").read_text().splitlines()
    model = phmctl.load(teacher.folder)
    sources = (folder / "train.source").read_text().splitlines()
    assert [answers[0].text for answers in model.translate(sources[:20])] == translations[:20]
    taught = phmctl.evaluate(result.run.folder, "valid").as_json()["scores"][0]["value"]
    assert taught > 85  # with random initial weights it reaches 56 to 75

    before = (folder / "train.teacher").stat().st_mtime_ns
    second = phmctl.distil(teacher.folder, n=2, steps=1, data=copying_data, runs=tmp_path).run.recipe
    assert second.data == student.data  # the teacher translates once for all its students
    assert (folder / "train.teacher").stat().st_mtime_ns == before


def test_the_student_starts_with_the_nearest_sums(teacher: Run, copying_data: Path, tmp_path: Path) -> None:
    settings = ["training.learning_rate=1e-30", "training.save_every=1"]
    tensors = {}
    options: dict[str, Any] = {"n": 4, "steps": 1, "settings": settings, "data": copying_data, "runs": tmp_path}
    for start in ("nearest", "random"):
        run = phmctl.distil(teacher.folder, start=start, **options).run
        tensors[start] = read_checkpoint(run.checkpoint("last"), ["model"]).tensors["model"]
    theirs = read_checkpoint(teacher.checkpoint("best"), ["model"]).tensors["model"]
    name = next(key for key in theirs if key.endswith("weight") and key.replace("weight", "S") in tensors["nearest"])
    weight, stem = theirs[name], name.removesuffix("weight")
    S = nearest_sum(weight, 4).S
    torch.testing.assert_close(tensors["nearest"][f"{stem}S"], S, atol=1e-5, rtol=1e-4)
    assert not torch.allclose(tensors["random"][f"{stem}S"], S, atol=1e-3)


def files_of(data: Path, split: str) -> tuple[Path, Path]:
    return data / f"{split}.source", data / f"{split}.target"


def test_a_student_has_the_splits_and_languages_but_not_the_start_of_its_teacher(
    teacher: Run, copying_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {name: files_of(copying_data, name.partition("_")[0]) for name in ("train", "valid", "test_news")}
    options: dict[str, Any] = {"languages": ("de", "zh"), "vocabulary": 300, "tokenizer": "bpe", "joint": True}
    phmctl.prepare("talks", data=tmp_path, files=files, entities="decode", **options)
    settings = [*TINY, "data.card=talks", "data.vocabulary=300", "data.max_tokens=256"]
    first = phmctl.train("miniature", settings=settings, data=tmp_path, runs=tmp_path / "runs").run
    second = phmctl.train("miniature", settings=settings, data=tmp_path, runs=tmp_path / "runs", init=first.folder).run
    cleanings: list[Cleaning] = []
    answer = Translator.answer

    def noted(self: Translator, *arguments: Any, **options: Any) -> Any:
        cleanings.append(self.cleaning)
        return answer(self, *arguments, **options)

    monkeypatch.setattr(Translator, "answer", noted)
    student = phmctl.distil(second.folder, start="random", beam=1, data=tmp_path, runs=tmp_path / "students").run
    assert cleanings == [Cleaning()]  # prepared text is clean, and a second time would decode &amp;lt; to <
    assert student.data()["settings"]["cleaning"]["entities"] == "decode"  # of what the student is asked
    assert student.splits() == first.splits() == ["test_news", "valid"]
    assert [student.data()[f"{side}_language"] for side in ("source", "target")] == ["de", "zh"]
    assert student.recipe.training.initialise_from is None


def test_a_reversed_teacher_with_two_vocabularies(copying_data: Path, tmp_path: Path) -> None:
    files = {name: files_of(copying_data, name) for name in ("train", "valid")}
    options: dict[str, Any] = {"vocabulary": 300, "tokenizer": "bpe", "joint": False, "reverse": True}
    phmctl.prepare("talks", data=tmp_path, files=files, languages=("de", "zh"), **options)
    settings = [*TINY, "data.card=talks", "data.vocabulary=300", "data.joint=false", "data.direction=reverse"]
    settings += ["model.share_embeddings=false", "data.max_tokens=256"]
    teacher = phmctl.train("miniature", settings=settings, data=tmp_path, runs=tmp_path / "runs").run
    student = phmctl.distil(teacher.folder, n=4, steps=1, beam=1, data=tmp_path, runs=tmp_path / "students").run
    assert [student.data()[f"{side}_language"] for side in ("source", "target")] == ["zh", "de"]
    for name in ("tokenizer", "text"):
        for path in (teacher.folder / name).iterdir():
            assert (student.folder / name / path.name).read_bytes() == path.read_bytes()


def test_a_teacher_whose_vocabulary_lacks_words_is_refused(copying_data: Path, tmp_path: Path) -> None:
    files = {name: files_of(copying_data, name) for name in ("train", "valid")}
    phmctl.prepare("few", data=tmp_path, files=files, tokenizer="word", vocabulary=20, joint=True)
    settings = [*TINY, "data.card=few", "data.tokenizer=word", "data.vocabulary=20", "data.max_tokens=256"]
    run = phmctl.train("miniature", settings=settings, data=tmp_path, runs=tmp_path / "runs").run
    with pytest.raises(RunError):
        phmctl.distil(run.folder, n=2, data=tmp_path)
    assert not (tmp_path / "taught").exists()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"start": "nearer"}, UserError),
        ({"settings": {"data.vocabulary": 60}}, RunError),
        ({"settings": ["training.device=cuda:9"], "beam": 8}, RecipeError),  # before the teacher translates
        ({"settings": ["data.copies=false"]}, UserError),  # distil sets this key
        ({"beam": 2000}, RecipeError),
        ({"tag": "my student", "beam": 3}, UserError),
    ],
)
def test_wrong_options_are_refused_before_anything_is_written(
    teacher: Run, copying_data: Path, options: dict[str, Any], error: type[UserError]
) -> None:
    before = sorted(copying_data.rglob("*"))
    with pytest.raises(error):
        phmctl.distil(teacher.folder, data=copying_data, **options)
    assert sorted(copying_data.rglob("*")) == before


def test_a_teacher_with_empty_translations_is_refused(
    teacher: Run, copying_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Translator, "answer", lambda self, lines, **options: [("", {})] * len(lines))
    test_wrong_options_are_refused_before_anything_is_written(teacher, copying_data, {"beam": 7}, RunError)


def test_the_command(teacher: Run, copying_data: Path, tmp_path: Path) -> None:
    options = ["--n", "2", "--steps", "2", "--data", copying_data, "--runs", tmp_path, "--beam", "1"]
    result = call("distil", teacher.folder, *options)
    assert result.exit_code == 0
    assert Run.open(Path(result.stdout.strip())).recipe.model.n == 2
