"""Copies of data in a run."""

from pathlib import Path

import pytest

from phmctl.data.prepared import PreparedData
from phmctl.errors import RunError
from phmctl.recipe.schema import Recipe
from phmctl.runs import Run
from phmctl.runs.copies import load_tokenizers, read_text


def test_the_copies_are_those_of_the_prepared_data(tiny_run: Run, tiny_recipe: Recipe, miniature_data: Path) -> None:
    prepared = PreparedData.find(tiny_recipe.data, miniature_data)
    assert read_text(tiny_run, "test", "source") == prepared.split("test").texts[0]
    assert read_text(tiny_run, "valid", "target") == prepared.split("valid").texts[1]
    assert load_tokenizers(tiny_run) == prepared.tokenizers
    assert tiny_run.data().items() >= prepared.manifest.items()


def test_text_that_is_not_utf_8(copied_run: Run) -> None:
    (copied_run.text_folder / "test.source").write_bytes(b"\xff\n")
    with pytest.raises(RunError, match=r"text/test\.source"):
        read_text(copied_run, "test", "source")


def test_line_ends_of_windows_change_nothing(copied_run: Run) -> None:
    """git's autocrlf converts text when a run is checked out."""
    before, tokenizers = read_text(copied_run, "test", "source"), load_tokenizers(copied_run)
    for path in (copied_run.text_folder / "test.source", copied_run.tokenizer_folder / "tokenizer.json"):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert read_text(copied_run, "test", "source") == before
    assert load_tokenizers(copied_run) == tokenizers
