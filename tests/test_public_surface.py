"""What ``import phmctl`` offers."""

import tomllib
from pathlib import Path

import pytest

import phmctl


def test_sacrebleu_of_which_more_is_used_than_it_promises_has_an_upper_bound() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert [each for each in project["dependencies"] if each.startswith("sacrebleu") and "<" in each]


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="PHMGRU"):
        _ = phmctl.PHMGRU
