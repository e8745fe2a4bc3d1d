"""Copies of data in a run: recorded when the run is created, verified when they are read."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from phmctl.data.prepared import PreparedData
from phmctl.errors import RunError
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.runs.copies import load_cleaning, load_tokenizers, read_text
from phmctl.storage import verify, write_json
from tests.data.helpers import cut, flip


@pytest.fixture
def run(tiny_run: Run, tmp_path: Path) -> Run:
    """A run that may be damaged."""
    shutil.copytree(tiny_run.folder, tmp_path / "run", symlinks=True)
    return Run.open(tmp_path / "run")


def use(run: Run, name: str) -> Any:
    """Read a copy by the function that a task uses."""
    if name.startswith("tokenizer/"):
        return load_tokenizers(run)
    if name == "data.json":
        return load_cleaning(run)
    return read_text(run, *Path(name).name.split("."))


COPIES = ["tokenizer/tokenizer.json", "text/test.source", "text/test.target", "text/valid.source"]


def test_every_copy_is_recorded(run: Run) -> None:
    entries = run.data()["copies"]
    files = {str(path.relative_to(run.folder)) for path in run.folder.glob("t*/*")}
    assert {entry["name"] for entry in entries} == files
    assert files >= set(COPIES)
    verify(run.folder, entries, RunError, "")


def test_the_copies_are_those_of_the_prepared_data(run: Run, tiny_recipe: Recipe, miniature_data: Path) -> None:
    prepared = PreparedData.find(tiny_recipe.data, miniature_data)
    assert read_text(run, "test", "source") == prepared.split("test").texts[0]
    assert read_text(run, "valid", "target") == prepared.split("valid").texts[1]
    assert load_tokenizers(run) == prepared.tokenizers
    assert run.data().items() >= prepared.manifest.items()


@pytest.mark.parametrize("damage", [flip, cut, Path.unlink])
@pytest.mark.parametrize("name", COPIES)
def test_damage_is_found_when_a_copy_is_read(run: Run, name: str, damage: Callable[[Path], None]) -> None:
    use(run, name)
    damage(run.folder / name)
    with pytest.raises(RunError, match=rf"run/{name} "):
        use(run, name)


@pytest.mark.parametrize("damage", [cut, Path.unlink])
@pytest.mark.parametrize("name", ["data.json", *COPIES])
def test_without_the_manifest_nothing_is_used(run: Run, name: str, damage: Callable[[Path], None]) -> None:
    damage(run.folder / "data.json")
    with pytest.raises(RunError, match=r"run/data\.json"):
        use(run, name)


@pytest.mark.parametrize("record", [5, ["text/test.source"], [{"name": "text/test.source"}]])
def test_an_invalid_record_is_refused(run: Run, record: object) -> None:
    write_json(run.folder / "data.json", run.data() | {"copies": record})
    with pytest.raises(RunError, match=r"data\.json .*'copies'"):
        read_text(run, "test", "source")


def test_files_without_the_record_that_cannot_be_read(run: Run) -> None:
    write_json(run.folder / "data.json", run.data() | {"copies": []})
    cut(run.folder / "tokenizer/tokenizer.json")
    with pytest.raises(RunError, match=r"run/tokenizer/tokenizer\.json"):
        load_tokenizers(run)
    (run.text_folder / "valid.source").unlink()
    with pytest.raises(RunError, match=r"run/text/valid\.source"):
        read_text(run, "valid", "source")
    (run.text_folder / "test.source").write_bytes(b"\xff\n")
    with pytest.raises(RunError, match=r"text/test\.source"):
        read_text(run, "test", "source")
