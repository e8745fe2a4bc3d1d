"""``phmctl train``."""

import json
import shlex
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from phmctl.errors import RecipeError, UserError
from phmctl.runs.results import read_metrics
from tests.calls import call, start, stop_training


def test_options_reach_the_recipe(train_copying: list[object]) -> None:
    options = ["--algebra", "quaternion", "--seed", 9, "--steps", 2, "--device", "cpu", "--set", "training.clip=0.5"]
    folder = Path(call(*train_copying, *options).stdout.strip())
    environment = json.loads((folder / "environment.json").read_text())
    assert folder.parent.name == "quaternion"
    assert environment["seed"] == 9
    assert "clip: 0.5" in (folder / "recipe.yaml").read_text()
    assert [entry["step"] for entry in read_metrics(folder / "metrics.jsonl") if entry["event"] == "train"] == [2]


def test_resume_takes_a_run_or_a_recipe(train_copying: list[object], copying_file: Path) -> None:
    with pytest.raises(UserError, match="nowhere"):
        call("train", "nowhere", "--resume")
    first = call(*train_copying, "--resume").stdout
    again = call(*train_copying, "--steps", 6, "--resume")
    assert again.stdout == first
    assert "2 steps in" in again.stderr
    assert "(6 in all)" in again.stderr
    assert "nothing left to train" in call(*train_copying, "--steps", 6, "--resume").stderr
    assert call(*train_copying).stdout != first
    run = first.strip()
    document = json.loads(call("train", run, "--steps", 8, "--resume", "--json").stdout)  # the run knows its data
    assert (document["run"], document["steps"], document["interrupted"]) == (run, 8, False)
    with pytest.raises(UserError, match="resume"):
        call("train", run)
    with pytest.raises(RecipeError, match=r"training\.clip"):
        call("train", run, "--set", "training.clip=7", "--resume")
    new = [*train_copying, "--set", "training.clip=7", "--resume"]
    with pytest.raises(UserError, match="checkpoint=best"):
        call(*new, "--checkpoint", "best")
    other = call(*new, "--tag", "mine").stdout.strip()
    assert other not in ("", run)
    for options in ([*new, "--tag", "b"], ["train", run, "--resume", "--tag", "b"]):
        with pytest.raises(UserError, match="tag=b"):
            call(*options)
    assert call(*new, "--tag", "mine").stdout.strip() == other  # as a job that is started again


def test_dry_run_takes_the_prepared_vocabularies(copying_data: Path, copying_file: Path, tmp_path: Path) -> None:
    """The copying corpus has fewer words than its recipe allows: 30 a side, and the special tokens."""
    from_recipe, from_data = (
        json.loads(call("train", copying_file, "--dry-run", "--json", "--data", root).stdout)
        for root in (tmp_path, copying_data)
    )
    assert from_recipe["recipe"]["name"] == "copying"
    assert (from_recipe["vocabularies_from"], [*from_recipe["parameters"]["sizes"].values()]) == ("recipe", [80, 80])
    assert (from_data["vocabularies_from"], [*from_data["parameters"]["sizes"].values()]) == ("prepared data", [34, 34])
    assert "34 source and 34 target" in call("train", copying_file, "--dry-run", "--data", copying_data).stderr
    unprepared = call("train", copying_file, "--dry-run", "--data", tmp_path)
    assert "as the recipe asks" in unprepared.stdout
    assert "phmctl prepare-data copying" in unprepared.stderr  # the reason why no time is printed


def test_dry_run_of_a_resumed_run_plans_what_resume_does(train_copying: list[object], tmp_path: Path) -> None:
    first = call(*train_copying).stdout.strip()
    run = call(*train_copying, "--init", first).stdout.strip()
    shutil.rmtree(first)
    plan = call("train", run, "--resume", "--dry-run", "--json", "--runs", tmp_path / "runs")
    assert json.loads(plan.stdout)["vocabularies_from"] == "prepared data"  # of the run's data folder


def test_ctrl_c_saves_and_the_run_can_be_resumed(train_copying: list[object], tmp_path: Path) -> None:
    run = tmp_path / "runs/copying/phm-n2/v001"
    stopped = stop_training(signal.SIGINT, run, *train_copying, "--steps", 100_000, "--set", "training.log_every=1")
    errors = stopped.stderr
    assert stopped.exit_code == 130
    assert "stopped and saved at step" in errors
    saved = int(errors.rsplit("at step ", 1)[1].split(";")[0])
    # The last line is a complete command that resumes the run.
    program, *arguments = shlex.split(errors.splitlines()[-1])
    assert (program, arguments[0]) == ("phmctl", "train")
    resumed = call(*arguments, "--steps", saved + 2, "--json")
    assert json.loads(resumed.stdout)["steps"] == saved + 2


def test_a_lost_terminal_loses_no_training(tmp_path: Path) -> None:
    """Training continues after stderr is closed, and saves on SIGHUP."""
    run = tmp_path / "hamilton/phm-n4/v001"
    command = ("train", "hamilton", "--steps", 1_000_000, "--runs", tmp_path, "--set", "training.log_every=1")
    with start(*command) as process:
        process.stderr.readline()
        process.stderr.close()
        deadline = time.monotonic() + 100
        while len(read_metrics(run / "metrics.jsonl")) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
        assert process.poll() is None
        process.send_signal(signal.SIGHUP)
        assert process.wait(timeout=100) == 129
    saved = int((run / "checkpoints/last").read_text().removeprefix("step-"))
    assert saved >= 5


def test_training_finishes_after_the_reader_of_both_streams_has_left(tmp_path: Path) -> None:
    """As in ``2>&1 | head -1``: training finishes, saves, and ends with the exit code of SIGPIPE."""
    command = ("train", "hamilton", "--steps", 5, "--runs", tmp_path, "--set", "training.log_every=1")
    with start(*command, stderr=subprocess.STDOUT) as process:
        assert process.stdout.readline().startswith("training ")
        process.stdout.close()
        assert process.wait(timeout=100) == 141
    assert (tmp_path / "hamilton/phm-n4/v001/checkpoints/last").read_text() == "step-000005\n"
