"""What ``import phmctl`` offers."""

import tomllib
from pathlib import Path

import pytest

import phmctl


def test_libraries_whose_internals_are_used_have_an_upper_bound() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert sum("<" in line for line in project["dependencies"] if line.startswith("sacrebleu")) == 1


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="PHMGRU"):
        _ = phmctl.PHMGRU
