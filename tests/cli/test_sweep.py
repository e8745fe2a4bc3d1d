"""``phmctl sweep``: finished, stopped and failed trainings; several processes; the commands of a job array."""

import json
import re
import shlex
import signal
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from phmctl import sweeps
from phmctl.cli.options import split_setting
from phmctl.runs import Run
from phmctl.runs.summary import list_runs
from phmctl.training.train import train
from tests.calls import call, stop_training
from tests.training.copying import copying_recipe


@pytest.fixture
def sweep(train_copying: list[object]) -> list[object]:
    return ["sweep", *train_copying[1:]]


Commands = Callable[[sweeps.Training], Sequence[str]]


def train_here(trainings: Sequence[sweeps.Training], command_of: Commands, jobs: int) -> None:
    """Run the commands of a sweep in this process."""
    for training in trainings:
        assert call(*command_of(training)).exit_code == 0
        training.state = "finished"


def test_a_sweep_skips_finished_trainings_and_reports_failures(
    sweep: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("datasets", "queue", "random"):  # modules in the working folder are not imported
        (tmp_path / f"{name}.py").write_text("raise SystemExit(7)\n")
    monkeypatch.chdir(tmp_path)
    rates = "training.learning_rate=0.001,1e30"  # the second gives NaN at once
    first = call(*sweep, "--set", rates, "--jobs", 2, "--tag", "grid", "--json")
    assert first.exit_code == 1
    trainings = {each["training"]: each for each in json.loads(first.stdout)["trainings"]}
    assert [trainings[f"learning_rate={rate}"]["state"] for rate in ("0.001", "1e30")] == ["finished", "failed"]
    assert "finite" in trainings["learning_rate=1e30"]["problem"]
    assert call("runs", "grid", "--runs", tmp_path / "runs").stdout.count(" grid ") == 2

    for path in (tmp_path / "runs").glob("*/*/v*/recipe.yaml"):  # a user's decoding settings make no other training
        path.write_text(re.sub("beam: [0-9]+", "beam: 7", path.read_text()))
    before = [run.run.folder for run in list_runs((), tmp_path / "runs")]
    again = call(*sweep, "--set", "training.learning_rate=0.001", "--seed", "1", "--tag", "two", "--json")
    assert (again.exit_code, again.stderr.count("training ")) == (0, 0), again.stderr
    assert [each["state"] for each in json.loads(again.stdout)["trainings"]] == ["finished"]
    assert [run.run.folder for run in list_runs((), tmp_path / "runs")] == before


def test_a_stopped_sweep_is_continued_to_the_same_weights(
    sweep: list[object], copying_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After SIGTERM the training saves; the same command finishes it and starts the waiting training."""
    changes = {"steps": 100, "save_every": 100, "validate_every": 100, "log_every": 1}
    settings = (f"--set=training.{key}={value}" for key, value in changes.items() if key != "steps")
    command = [*sweep, "--steps", "100,1", *settings]
    result = stop_training(signal.SIGTERM, tmp_path / "runs/copying/phm-n2/v001", *command)
    assert result.exit_code == 143, result.stderr
    assert "2 of 2 trainings are not finished" in result.stderr
    assert [line.split()[1] for line in result.stdout.splitlines() if "steps=" in line] == ["stopped", "waiting"]
    (stopped,) = list_runs((), tmp_path / "runs")
    assert (stopped.state, 0 < stopped.step < 100) == ("stopped", True)

    monkeypatch.setattr(sweeps, "run_commands", train_here)
    assert call(*command).stdout.count("finished") == 2
    runs = {run.recipe.training.steps: run for run in list_runs((), tmp_path / "runs")}
    assert [runs[steps].state for steps in (100, 1)] == ["finished", "finished"]
    undisturbed = train(copying_recipe(n=2, **changes), data=copying_data, runs=tmp_path / "other").run
    assert runs[100].recipe == undisturbed.recipe
    digests = [run.weights("last").sha256 for run in (runs[100].run, undisturbed)]
    assert digests[0] == digests[1]


def test_a_training_that_a_signal_stops_after_the_last_step_is_finished(
    sweep: list[object], copying_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop_late(trainings: Sequence[sweeps.Training], command_of: Commands, jobs: int) -> int:
        first, second = trainings
        train(first.recipe, data=copying_data, runs=tmp_path / "runs")
        first.state = second.state = "stopped"
        return 130

    monkeypatch.setattr(sweeps, "run_commands", stop_late)
    result = call(*sweep, "--seed", "1,2", "--steps", 2, "--json")
    assert [each["state"] for each in json.loads(result.stdout)["trainings"]] == ["finished", "stopped"]
    assert result.exit_code == 130


def test_a_training_that_another_process_runs_is_unfinished(
    sweep: list[object], copying_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another sweep begins the second training after this one has begun."""

    def begin_elsewhere(trainings: Sequence[sweeps.Training], command_of: Commands, jobs: int) -> None:
        first, second = trainings
        run = Run.create(tmp_path / "runs", second.recipe)
        with run.claimed():
            assert command_of(second) == []
        first.state = "finished"

    monkeypatch.setattr(sweeps, "run_commands", begin_elsewhere)
    result = call(*sweep, "--seed", "1,2", "--steps", 2, "--json")
    assert [each["state"] for each in json.loads(result.stdout)["trainings"]] == ["finished", "running"]
    assert result.exit_code == 1


def test_the_listed_commands_train_the_combinations(
    sweep: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    grid = ["--n", "1,2", "--seed", "1,2", "--steps", 2, "--set", 'description="a, b"']
    commands = call(*sweep, *grid, "--list").stdout.splitlines()
    assert len(commands) == 4
    assert not (tmp_path / "runs").exists()
    name, *arguments = shlex.split(commands[1])
    assert name == "phmctl"
    monkeypatch.setattr(sweeps, "run_commands", train_here)
    assert call(*arguments).exit_code == 0
    (run,) = list_runs((), tmp_path / "runs")
    assert (run.recipe.model.n, run.recipe.training.seed, run.recipe.description) == (1, 2, "a, b")


def test_combinations_with_equal_recipes_are_one_training(copying_file: Path) -> None:
    listed = call("sweep", copying_file, "--n", "1", "--algebra", "real,real", "--list").stdout.splitlines()
    assert len(listed) == 1
    values = "model.algebra=quaternion,quaternion"
    assert len(call("sweep", copying_file, "--set", values, "--set", "model.n=1", "--list").stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1,2, 4", ["1", "2", "4"]),
        ("", [""]),
        ("'a,b',c", ["'a,b'", "c"]),
        ("[1, 2], [3]", ["[1, 2]", "[3]"]),
        ("don't,x", ["don't", "x"]),  # a quote within a word
        ("[1,2", ["[1,2"]),  # never closed
    ],
)
def test_commas_separate_values_outside_quotes_and_brackets(text: str, values: list[str]) -> None:
    assert split_setting(f"a.b={text}") == [f"a.b={value}" for value in values]
