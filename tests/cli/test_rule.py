"""The commands on a task without text: learning a rule."""

import json
from pathlib import Path

import pytest

from phmctl.runs import Run
from phmctl.runs.results import read_results
from tests.calls import call


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the shipped recipe as it is."""
    result = call("train", "hamilton", "--device", "cpu", "--runs", tmp_path_factory.mktemp("runs"))
    assert result.exit_code == 0
    return Path(result.stdout.strip())


def test_a_run_has_no_text(run: Path) -> None:
    assert run.parts[-3:] == ("hamilton", "phm-n4", "v001")
    assert not (run / "text").exists()


def test_eval_reports_map_and_rule(run: Path) -> None:
    found = json.loads(call("eval", run, "--json").stdout)
    assert found["learned"] is True
    assert found["map_error"] < found["threshold"] == 1e-3
    assert found["rule"]["relative_error"] < 1e-3
    assert [result.report for result in read_results(Run.open(run))] == [found]
    shown = call("eval", run).stdout
    assert f"{found['map_error']:.1e}" in shown
    assert f"{found['rule']['relative_error']:.1e}" in shown
    assert "GL(4)" in shown
