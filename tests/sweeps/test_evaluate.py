"""``eval`` of several runs and values."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.tasks.answers import p_words
from tests.calls import call
from tests.tasks.translation.runs import make_run


@pytest.fixture
def good(tmp_path: Path) -> Run:
    return make_run(tmp_path / "runs")


def test_each_run_is_scored_by_itself(good: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(good.folder, broken)
    shutil.rmtree(broken / "checkpoints")
    done = call("eval", good.folder, broken, "--beam", 2, "--jobs", 2, "--json")
    assert done.exit_code == 1
    first, second = json.loads(done.stdout)["cells"]
    (result,) = read_results(good)
    assert (first["state"], first["report"]) == ("finished", dict(result.report))
    assert result.settings["decoding"]["beam"] == 2
    assert (second["state"], second["report"]) == ("failed", {})
    assert f"failed: {broken}" in done.stderr
    assert "has no checkpoint" in second["problem"]


def test_several_baselines_are_cells_of_their_own(good: Run, tmp_path: Path) -> None:
    rivals = [make_run(tmp_path / "runs", name, seed=2) for name in ("one", "other")]
    both = ",".join(str(each.folder) for each in rivals)
    done = call("eval", good.folder, "--beam", "2", "--against", both, "--cased", "--json")
    reports = [cell["report"] for cell in json.loads(done.stdout)["cells"]]
    assert [report["against"] for report in reports] == [each.name for each in rivals]
    assert "name: tiny; one in one/real/v001" in done.stderr
    shown = call("eval", good.folder, "--beam", "2", "--against", both, "--cased").stdout
    assert p_words(reports[0]["paired_bootstrap"][0]["p_value"]) in shown


def test_the_cells_as_commands(good: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    root = good.folder.parents[2]
    monkeypatch.setenv("PHMCTL_RUNS", str(root))
    done = call("eval", good.name, "--beam", "1,4", "--checkpoint", "best,last", "--cased", "--against", "x", "--list")
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [[line[6], line[8]] for line in commands] == [[c, b] for c in ("best", "last") for b in ("1", "4")]
    assert commands[0] == [
        *("phmctl", "eval", str(good.folder), "--against", "x", "--checkpoint", "best", "--beam", "1", "--cased"),
    ]
    other = good.folder.with_name("v002")
    shutil.copytree(good.folder, other)
    environment = json.loads((other / "environment.json").read_text())
    (other / "environment.json").write_text(json.dumps({**environment, "tag": "second"}))
    asked = (("second",), (good.recipe.name, "--all"))
    listed = [call("eval", *names, "--list").stdout.splitlines() for names in asked]
    assert [[Path(shlex.split(line)[2]) for line in lines] for lines in listed] == [[other], [good.folder, other]]
