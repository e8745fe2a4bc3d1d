"""What ``import phmctl`` offers, and that it costs nothing until it is used."""

import subprocess
import sys
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


def test_import_alone_does_not_import_torch() -> None:
    code = "import sys, phmctl; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
