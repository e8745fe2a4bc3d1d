"""Copies of data in a run."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from phmctl.data.prepared import PreparedData
from phmctl.errors import RunError
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.runs.copies import load_cleaning, load_tokenizers, read_text
from tests.data.helpers import cut


@pytest.fixture
def run(tiny_run: Run, tmp_path: Path) -> Run:
    """A run that may be damaged."""
    shutil.copytree(tiny_run.folder, tmp_path / "run", symlinks=True)
    return Run.open(tmp_path / "run")


def test_the_copies_are_those_of_the_prepared_data(run: Run, tiny_recipe: Recipe, miniature_data: Path) -> None:
    prepared = PreparedData.find(tiny_recipe.data, miniature_data)
    assert read_text(run, "test", "source") == prepared.split("test").texts[0]
    assert read_text(run, "valid", "target") == prepared.split("valid").texts[1]
    assert load_tokenizers(run) == prepared.tokenizers
    assert run.data().items() >= prepared.manifest.items()


@pytest.mark.parametrize("damage", [cut, Path.unlink])
def test_without_the_manifest_text_is_not_used(run: Run, damage: Callable[[Path], None]) -> None:
    damage(run.folder / "data.json")
    with pytest.raises(RunError, match=r"run/data\.json"):
        load_cleaning(run)


def test_files_that_cannot_be_read(run: Run) -> None:
    cut(run.folder / "tokenizer/tokenizer.json")
    with pytest.raises(RunError, match=r"run/tokenizer/tokenizer\.json"):
        load_tokenizers(run)
    (run.text_folder / "valid.source").unlink()
    with pytest.raises(RunError, match=r"run/text/valid\.source"):
        read_text(run, "valid", "source")
    (run.text_folder / "test.source").write_bytes(b"\xff\n")
    with pytest.raises(RunError, match=r"text/test\.source"):
        read_text(run, "test", "source")


def test_line_ends_of_windows_change_nothing(run: Run) -> None:
    """git's autocrlf converts text when a run is checked out."""
    before, tokenizers = read_text(run, "test", "source"), load_tokenizers(run)
    for path in (run.text_folder / "test.source", run.tokenizer_folder / "tokenizer.json"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_text(run, "test", "source") == before
    assert load_tokenizers(run) == tokenizers
