"""A quick part of ``make faults``."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.faults.harness import compiler, preloaded
from tests.faults.quick import POINTS

pytestmark = pytest.mark.skipif(
    compiler() is None, reason="no C compiler: the shim that disturbs writes cannot be made"
)


def _python(folder: Path, *arguments: str, timeout: float = 500) -> None:
    command = [sys.executable, *arguments]
    done = subprocess.run(command, env=preloaded(folder), capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("faults")
    _python(folder, "-m", "tests.faults.quick", str(folder / "sweep"), str(folder / "found.json"))
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.parametrize(("name", "kind"), [(name, kind) for name, kinds in POINTS.items() for kind in kinds])
def test_a_disturbed_write_loses_nothing(swept: dict[str, Any], name: str, kind: str) -> None:
    found = next(each for each in swept["found"] if (each["scenario"], each["kind"]) == (name, kind))
    assert (found["points"], found["wrong"]) == (1, [])
    assert found["ended"] == {"killed" if kind == "kill" else "exit 1": 1}  # of two, the one that is left


def test_the_harness_sees_what_is_left_behind(swept: dict[str, Any]) -> None:
    """Without the clearing of leftovers it finds some."""
    assert "left .exported." in swept["careless"]["wrong"][0]
