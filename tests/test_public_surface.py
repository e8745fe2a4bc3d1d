"""What ``import phmctl`` offers."""

import tomllib
from pathlib import Path

import pytest

import phmctl


def test_libraries_of_which_more_is_used_than_they_promise_have_an_upper_bound() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    assert sum("<" in each for each in wanted if each.startswith(("sacrebleu", "uvicorn"))) == 2


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="PHMGRU"):
        _ = phmctl.PHMGRU
