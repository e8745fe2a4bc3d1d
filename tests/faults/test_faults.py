"""A quick part of ``make faults``: a kill and a full disk at one write of each command."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.harness import compiler, preloaded
from tests.faults.scenarios import scenarios

pytestmark = pytest.mark.skipif(
    compiler() is None, reason="no C compiler: the shim that disturbs writes cannot be made"
)


def _python(folder: Path, *arguments: str) -> None:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=preloaded(folder), capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_write_of_every_command_is_disturbed(tmp_path: Path) -> None:
    found = tmp_path / "found.json"
    _python(tmp_path, "-m", "tests.faults.sweep", "--json", str(found), "--points", "1", "--kinds", "kill,full")
    swept = [(each["scenario"], each["kind"]) for each in json.loads(found.read_text())]
    assert swept == [(scenario.name, kind) for scenario in scenarios(tmp_path) for kind in ("kill", "full")]


def test_the_harness_sees_what_is_left_behind(tmp_path: Path) -> None:
    """Without the clearing of leftovers it finds some."""
    _python(tmp_path, "-c", _CARELESS)


_CARELESS = """
import tempfile
from pathlib import Path

import phmctl.files
from tests.faults.harness import import_all
from tests.faults.scenarios import scenarios
from tests.faults.sweep import sweep

import_all()
phmctl.files.temporaries = lambda path: []
with tempfile.TemporaryDirectory() as folder:
    scenario = next(each for each in scenarios(Path(folder) / "work") if each.name == "train-resumed")
    found = sweep(scenario, "kill", Path(folder), points=6)
assert any("left runs/tiny" in each for each in found.wrong), found
"""


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("strace") is None, reason="no strace to compare with")
def test_the_shim_sees_what_the_kernel_sees(tmp_path: Path) -> None:
    """What safetensors and tokenizers (Rust), Arrow (C++) and Python write: strace counts the same calls."""
    _python(tmp_path, "-m", "tests.faults.strace")
