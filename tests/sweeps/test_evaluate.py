"""``eval`` of several runs and values."""

import json
import shlex
import shutil
from pathlib import Path

import pytest

from phmctl.errors import RecipeError, RunError, UserError
from phmctl.runs import Run
from phmctl.runs.results import read_results
from phmctl.sweeps.evaluate import EvalSweep
from phmctl.tasks.answers import ONE_SEED, p_words
from tests.calls import call
from tests.tasks.translation.runs import evaluate, make_run


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


def test_what_was_scored_before_is_left_alone(good: Run, tmp_path: Path) -> None:
    rival = make_run(tmp_path / "runs", "rival", seed=2)
    first = json.loads(call("eval", good.folder, rival.folder, "--beam", "2", "--json").stdout)
    done = call("eval", good.folder, rival.folder, "--beam", "2,3", "--json")
    assert "2 of 4 cells: nothing to do" in done.stderr
    assert done.stderr.count("started") == 2
    cells = json.loads(done.stdout)["cells"]
    assert [cells[0], cells[2]] == [each | {"cell": "beam=2"} for each in first["cells"]]
    compared = call("eval", good.folder, rival.folder, "--beam", "2", "--against", rival.folder, "--cased", "--json")
    assert "nothing to do" not in compared.stderr  # the comparison is another result
    again = call("eval", good.folder, rival.folder, "--beam", "2", "--against", rival.folder, "--cased", "--json")
    assert "2 of 2 cells: nothing to do" in again.stderr
    assert json.loads(again.stdout) == json.loads(compared.stdout)
    both = ("--against", rival.folder, "--against", good.folder, "--cased")
    told = json.loads(call("eval", good.folder, rival.folder, "--beam", "2", *both, "--json").stdout)["cells"][0][
        "report"
    ]
    assert [report["against"] for report in told["comparisons"]] == [rival.name, good.name]
    shown = call("eval", good.folder, rival.folder, "--beam", "2", *both)
    assert ONE_SEED in shown.stdout
    assert p_words(told["comparisons"][0]["paired_bootstrap"][0]["p_value"]) in shown.stdout
    assert f"{good.folder} against {rival.name}: " in shown.stderr


def test_what_was_scored_is_scored_again_when_weights_or_answers_are_others(good: Run) -> None:
    asked = EvalSweep.of([good.folder], False, {"split": "test", "checkpoint": "best", "beam": "2,3"})
    evaluate(good, beam=2)
    assert [bool(asked.scored_before(good.folder, cell)) for cell in asked.cells] == [True, False]
    (answers,) = good.results_folder.glob("*.hyp")
    answers.unlink()
    assert not asked.scored_before(good.folder, asked.cells[0])
    evaluate(good, beam=2)
    good.point("best", 1)
    assert not asked.scored_before(good.folder, asked.cells[0])
    engine = {"split": "test", "checkpoint": "best", "engine": "ctranslate2"}  # its own process looks at the export
    exported = EvalSweep.of([good.folder], False, engine)
    assert exported.scored_before(good.folder, exported.cells[0]) == []


def test_the_cells_as_commands(good: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PHMCTL_RUNS", str(good.folder.parents[2]))
    done = call("eval", good.name, "--beam", "1,4", "--checkpoint", "best,last", "--cased", "--against", "x", "--list")
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [[line[6], line[8]] for line in commands] == [[c, b] for c in ("best", "last") for b in ("1", "4")]
    assert commands[0] == [
        *("phmctl", "eval", str(good.folder), "--split", "test", "--checkpoint", "best", "--beam", "1"),
        *("--against", "x", "--cased"),
    ]


def test_a_tag_and_all_runs_of_a_name(good: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    root = good.folder.parents[2]
    monkeypatch.setenv("PHMCTL_RUNS", str(root))
    other = good.folder.with_name("v002")
    shutil.copytree(good.folder, other)
    environment = json.loads((other / "environment.json").read_text())
    (other / "environment.json").write_text(json.dumps({**environment, "tag": "second"}))
    asked = (("second",), (good.recipe.name, "--all"))
    listed = [call("eval", *names, "--list").stdout.splitlines() for names in asked]
    assert [[Path(shlex.split(line)[2]) for line in lines] for lines in listed] == [[other], [good.folder, other]]


@pytest.mark.parametrize(
    ("failure", "options", "said"),
    [
        (RecipeError, ("--beam", "1,x"), "--beam x: "),
        (RecipeError, ("--alpha", "x"), "--alpha x: "),
        (RunError, ("--split", "train", "--list"), "--split train: no run has it; there are test, valid"),
        (RunError, ("--checkpoint", "best,avrage", "--list"), "has no checkpoint 'avrage'"),
        (RunError, ("nowhere",), "no run at nowhere"),
        (UserError, ("--all", "--probing"), "--probing is for one run"),
    ],
)
def test_what_is_wrong_is_refused_before_anything_starts(
    good: Run, failure: type[UserError], options: tuple[str, ...], said: str
) -> None:
    with pytest.raises(failure, match=said):
        call("eval", good.folder, *options)
    assert read_results(good) == []
