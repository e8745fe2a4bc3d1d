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
def swept(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Any]:
    folder = tmp_path_factory.mktemp("faults")
    _python(folder, "-m", "tests.faults.quick", str(folder / "sweep"), str(folder / "outcomes.json"))
    outcomes = json.loads((folder / "outcomes.json").read_text())
    return {(outcome["scenario"], outcome["disturbance"]): outcome for outcome in outcomes}


@pytest.mark.parametrize(
    ("name", "disturbance"),
    [(name, disturbance) for name, disturbances in POINTS.items() for disturbance in disturbances],
)
def test_a_disturbed_write_loses_nothing(swept: dict[tuple[str, str], Any], name: str, disturbance: str) -> None:
    outcome = swept[name, disturbance]
    assert (outcome["points"], outcome["wrong"]) == (1, [])
    assert outcome["ended"] == {"killed" if disturbance == "kill" else "exit 1": 1}  # of two, the surviving process
