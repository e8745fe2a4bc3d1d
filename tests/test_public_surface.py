"""What ``import phmctl`` offers."""

import tomllib
from pathlib import Path

import pytest

import phmctl


def test_libraries_whose_internals_are_used_have_an_upper_bound() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    requirements = [*project["dependencies"], *project["optional-dependencies"]["serve"]]
    assert sum("<" in line for line in requirements if line.startswith(("sacrebleu", "uvicorn"))) == 2


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="PHMGRU"):
        _ = phmctl.PHMGRU
