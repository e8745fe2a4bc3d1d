"""The commands on a task without text: learning a rule."""

import json
from pathlib import Path

from phmctl.runs import Run
from phmctl.runs.results import read_results
from tests.calls import call


def test_a_rule_is_learned_and_judged_by_commands(tmp_path: Path) -> None:
    """The shipped recipe as it is; a run of it has no text."""
    run = Path(call("train", "hamilton", "--device", "cpu", "--runs", tmp_path).stdout.strip())
    assert run.parts[-3:] == ("hamilton", "phm-n4", "v001")
    assert not (run / "text").exists()
    found = json.loads(call("eval", run, "--json").stdout)
    assert found["learned"] is True
    assert found["map_error"] < found["threshold"] == 1e-3
    assert [result.report for result in read_results(Run.open(run))] == [found]
    shown = call("eval", run).stdout
    assert all(f"{error:.1e}" in shown for error in (found["map_error"], found["rule"]["relative_error"]))
