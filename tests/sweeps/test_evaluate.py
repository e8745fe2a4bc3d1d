"""``eval`` of several runs and values."""

import json
import shlex
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from phmctl.cli.main import app
from phmctl.errors import RecipeError, RunError, UserError
from phmctl.runs import Run
from phmctl.runs.results import read_results
from tests.tasks.translation.runs import make_run


def call(*arguments: object) -> Result:
    result = CliRunner().invoke(app, ["eval", *map(str, arguments)])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


@pytest.fixture
def good(tmp_path: Path) -> Run:
    return make_run(tmp_path / "runs")


def test_each_run_is_scored_by_itself(good: Run, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(good.folder, broken)
    shutil.rmtree(broken / "checkpoints")
    done = call(good.folder, broken, "--beam", 2, "--jobs", 2, "--json")
    assert done.exit_code == 1
    first, second = json.loads(done.stdout)["cells"]
    (result,) = read_results(good)
    assert (first["state"], first["report"]) == ("finished", dict(result.report))
    assert result.settings["decoding"]["beam"] == 2
    assert (second["state"], second["report"]) == ("failed", {})
    assert f"failed: {broken}" in done.stderr
    assert "has no checkpoint" in second["problem"]


def test_the_cells_as_commands(good: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHMCTL_RUNS", str(good.folder.parents[2]))
    done = call(good.name, "--beam", "1,4", "--checkpoint", "best,last", "--cased", "--against", "x", "--list")
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [[line[6], line[8]] for line in commands] == [[c, b] for c in ("best", "last") for b in ("1", "4")]
    assert commands[0] == [
        *("phmctl", "eval", str(good.folder), "--split", "test", "--checkpoint", "best", "--beam", "1"),
        *("--cased", "--against", "x"),
    ]


def test_a_tag_and_all_runs_of_a_name(good: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    root = good.folder.parents[2]
    monkeypatch.setenv("PHMCTL_RUNS", str(root))
    other = good.folder.with_name("v002")
    shutil.copytree(good.folder, other)
    environment = json.loads((other / "environment.json").read_text())
    (other / "environment.json").write_text(json.dumps({**environment, "tag": "second"}))
    asked = (("second",), (good.recipe.name, "--all"))
    listed = [call(*names, "--list").stdout.splitlines() for names in asked]
    assert [[Path(shlex.split(line)[2]) for line in lines] for lines in listed] == [[other], [good.folder, other]]


def test_what_is_wrong_is_refused_before_anything_starts(good: Run) -> None:
    with pytest.raises(RecipeError, match="--beam x: want a whole number"):
        call(good.folder, "--beam", "1,x")
    with pytest.raises(RecipeError, match="--alpha x: want a number"):
        call(good.folder, "--alpha", "x")
    with pytest.raises(RunError, match="no run at nowhere"):
        call(good.folder, "nowhere")
    with pytest.raises(UserError, match="--probing is for one run"):
        call(good.folder, good.folder, "--probing")
    assert read_results(good) == []
