"""Sweeps of real trainings: all cells, what is finished, stopped or fails, the commands for a scheduler."""

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from phmctl.checkpoints import checkpoint_digest
from phmctl.runs import Run
from phmctl.runs.metrics import read_metrics
from phmctl.runs.summary import Summary, list_runs
from phmctl.training.train import train
from tests.calls import call
from tests.training.copying import copying_recipe


def known(root: Path) -> dict[tuple[int, int], Summary]:
    """The runs, by n and seed."""
    found = list_runs((), root)
    return {(run.recipe.model.dimension, run.recipe.training.seed): run for run in found}


def test_a_sweep_trains_what_is_not_finished_and_says_what_failed(
    copying_data: Path, copying_file: Path, tmp_path: Path
) -> None:
    where = ["--data", copying_data, "--runs", tmp_path / "runs"]
    spoilt = "training.learning_rate=0.001,1e30"  # the second: NaN at once
    first = call("train", copying_file, *where, "--set", spoilt, "--jobs", 2, "--tag", "grid", "--json")
    assert first.exit_code == 1
    cells = {cell["cell"]: cell for cell in json.loads(first.stdout)["cells"]}
    assert [cells[f"learning_rate={rate}"]["state"] for rate in ("0.001", "1e30")] == ["finished", "failed"]
    assert "failed: learning_rate=1e30" in first.stderr
    assert "NaN" in cells["learning_rate=1e30"]["problem"] or "finite" in cells["learning_rate=1e30"]["problem"]
    assert all(run.tag == "grid" for run in list_runs((), tmp_path / "runs"))

    again = call("train", copying_file, *where, "--set", "training.learning_rate=0.001", "--seed", "1,2")
    assert again.exit_code == 0, again.stderr
    assert "1 of 2 cells: nothing to do" in again.stderr
    assert "[2/2] seed=2: finished" in again.stderr
    rows = [line.split() for line in again.stdout.splitlines() if line.startswith("seed=")]
    assert [row[:2] for row in rows] == [["seed=1", "finished"], ["seed=2", "finished"]]
    assert Run.open(rows[1][-1]).recipe.training.seed == 2


def test_a_sweep_that_is_stopped_goes_on_to_the_same_weights(
    copying_data: Path, copying_file: Path, tmp_path: Path
) -> None:
    """SIGTERM: the cell saves and the sweep ends; the same command finishes it, and starts what was waiting."""
    command = _long(copying_file, copying_data, tmp_path)
    process = _begun(command, tmp_path / "runs/copying/phm-n2/v001")
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "2 of 2 cells are not finished" in errors
    assert [line.split()[1] for line in out.splitlines() if line.startswith("seed=")] == ["stopped", "waiting"]
    (stopped,) = known(tmp_path / "runs").values()
    assert (stopped.state, 0 < stopped.step < 200) == ("stopped", True)

    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.count("finished") == 2
    found = known(tmp_path / "runs")
    assert {run.state for run in found.values()} == {"finished"}
    changes = {"steps": 200, "save_every": 200, "validate_every": 100, "log_every": 1}
    undisturbed = train(copying_recipe(n=2, **changes), data=copying_data, runs=tmp_path / "other", quiet=True).run
    assert found[2, 1].recipe == undisturbed.recipe
    digests = [checkpoint_digest(run.checkpoint("last"), "model") for run in (found[2, 1].run, undisturbed)]
    assert digests[0] == digests[1]


def test_a_sweep_that_is_killed_takes_its_trainings_with_it(
    copying_data: Path, copying_file: Path, tmp_path: Path
) -> None:
    """SIGKILL tells nobody; they see that it is gone, save and end, so the same command goes on with them."""
    runs = [tmp_path / f"runs/copying/phm-n2/v00{number}" for number in (1, 2)]
    process = _begun([*_long(copying_file, copying_data, tmp_path), "--jobs", "2"], *runs)
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while {run.state for run in known(tmp_path / "runs").values()} != {"stopped"} and time.monotonic() < deadline:
        time.sleep(0.1)
    found = known(tmp_path / "runs").values()
    assert [(run.state, 0 < run.step < 200) for run in found] == [("stopped", True)] * 2


def _long(recipe: Path, data: Path, folder: Path) -> list[str]:
    settings = ["training.steps=200", "training.save_every=200", "training.validate_every=100", "training.log_every=1"]
    options = [part for setting in settings for part in ("--set", setting)]
    where = ["--data", str(data), "--runs", str(folder / "runs")]
    return [sys.executable, "-m", "phmctl", "train", str(recipe), "--seed", "1,2", *options, *where]


def _begun(command: list[str], *runs: Path) -> subprocess.Popen[str]:
    """Start a sweep; return when each of these runs has trained a step."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 120
    while not all(read_metrics(run / "metrics.jsonl") for run in runs) and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def test_the_listed_commands_train_the_cells(copying_data: Path, copying_file: Path, tmp_path: Path) -> None:
    where = ["--data", copying_data, "--runs", tmp_path / "runs"]
    grid = ["--n", "1,2", "--seed", "1,2", "--steps", 2, "--set", 'description="a, b"']
    listed = call("train", copying_file, *grid, *where, "--list")
    commands = listed.stdout.splitlines()
    assert len(commands) == 4
    assert not (tmp_path / "runs").exists()
    name, *arguments = shlex.split(commands[1])
    assert name == "phmctl"
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for said in ("finished after", "1 of 1 cells: nothing to do"):
        command = [sys.executable, "-m", "phmctl", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert said in done.stderr
    ((n, seed),) = known(tmp_path / "runs")
    assert (n, seed) == (1, 2)
    assert known(tmp_path / "runs")[1, 2].recipe.description == "a, b"
