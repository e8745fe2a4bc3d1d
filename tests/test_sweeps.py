"""Sweeps: several processes at once; finished, stopped and failed jobs; the commands of a job array."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from phmctl import __version__
from phmctl.errors import DataError
from phmctl.runs import Run
from phmctl.runs.results import read_metrics, read_results
from phmctl.runs.summary import Summary, list_runs
from phmctl.sweeps import Job, run_and_report, run_jobs, threads_per_job
from phmctl.training.train import train
from tests.calls import call, start
from tests.tasks.translation.runs import make_run
from tests.training.copying import copying_recipe


def test_a_failed_job_does_not_stop_the_others() -> None:
    jobs = [Job("bad", ["recipes", "hamiltn"]), Job("good", ["--version"])]
    seen: list[tuple[str, int | None]] = []
    assert run_jobs(jobs, 1, lambda job, line: seen.append((job.label, job.code))) is None
    assert [job.code for job in jobs] == [2, 0]
    assert jobs[1].output == f"phmctl {__version__}\n"
    assert (jobs[0].problem or "").startswith("error: no recipe 'hamiltn'")
    assert seen[0] == ("bad", None)
    assert seen[-2:] == [("good", None), ("good", 0)]
    assert [code for _, code in seen].count(2) == 1


@pytest.mark.parametrize(("name", "code"), [("long", -signal.SIGTERM), ("short", 0)])
def test_an_error_in_the_callback_stops_running_and_waiting_jobs(
    name: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "program"
    program.write_text('#!/bin/sh\n[ "$3" = short ] || exec sleep 20\n')
    program.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(program))
    jobs = [Job(name, [name]), Job("waiting", ["short"])]

    def changed(job: Job, line: str | None) -> None:
        if name == "long" or job.code is not None:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run_jobs(jobs, 1, changed)
    assert [job.code for job in jobs] == [code, None]
    assert jobs[0].state == ("stopped" if code else "finished")
    assert run_and_report(jobs[:1], 1).code == (1 if code else 0)


def test_threads_are_divided_among_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert [threads_per_job(jobs) for jobs in (1, 2, 3, 7, 9)] == [7, 3, 2, 1, 1]
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert threads_per_job(1) >= 1


@pytest.fixture
def good(tmp_path: Path) -> Run:
    return make_run(tmp_path / "runs")


def test_each_run_is_a_cell(good: Run, tmp_path: Path) -> None:
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


def test_the_cells_as_commands(good: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    root = good.folder.parents[2]
    monkeypatch.setenv("PHMCTL_RUNS", str(root))
    done = call("eval", good.name, "--beam", "1,4", "--checkpoint", "best,last", "--cased", "--list")
    commands = [shlex.split(line) for line in done.stdout.splitlines()]
    assert [[line[4], line[6]] for line in commands] == [[c, b] for c in ("best", "last") for b in ("1", "4")]
    assert commands[0] == [
        *("phmctl", "eval", str(good.folder), "--checkpoint", "best", "--beam", "1", "--cased"),
    ]
    other = good.folder.with_name("v002")
    shutil.copytree(good.folder, other)
    environment = json.loads((other / "environment.json").read_text())
    (other / "environment.json").write_text(json.dumps({**environment, "tag": "second"}))
    selections = (("second",), (good.recipe.name, "--all"))
    listed = [call("eval", *names, "--list").stdout.splitlines() for names in selections]
    assert [[Path(shlex.split(line)[2]) for line in lines] for lines in listed] == [[other], [good.folder, other]]
    for side in ("source", "target"):  # of which one run has other test sets
        other.joinpath("text", f"test.{side}").rename(other / "text" / f"test_b.{side}")
    for split, sets in (("test", ["test", "test_b"]), ("all,test", ["test", "test_b"])):
        lines = call("eval", good.folder, other, "--split", split, "--list").stdout.splitlines()
        assert [line.partition("--split ")[2] or "test" for line in lines] == sets


def known(root: Path) -> dict[tuple[int, int], Summary]:
    """The runs, by n and seed."""
    return {(run.recipe.model.n, run.recipe.training.seed): run for run in list_runs((), root)}


def test_a_sweep_skips_finished_trainings_and_reports_failures(train_copying: list[object], tmp_path: Path) -> None:
    rates = "training.learning_rate=0.001,1e30"  # the second gives NaN at once
    first = call(*train_copying, "--set", rates, "--jobs", 2, "--tag", "grid", "--json")
    assert first.exit_code == 1
    cells = {cell["cell"]: cell for cell in json.loads(first.stdout)["cells"]}
    assert [cells[f"learning_rate={rate}"]["state"] for rate in ("0.001", "1e30")] == ["finished", "failed"]
    assert "failed: learning_rate=1e30" in first.stderr
    assert "NaN" in cells["learning_rate=1e30"]["problem"] or "finite" in cells["learning_rate=1e30"]["problem"]
    assert all(run.tag == "grid" for run in list_runs((), tmp_path / "runs"))

    for path in (tmp_path / "runs").glob("*/*/v*/recipe.yaml"):  # a user's decoding settings make no other training
        path.write_text(re.sub("beam: [0-9]+", "beam: 7", path.read_text()))
    again = call(*train_copying, "--set", "training.learning_rate=0.001", "--seed", "1,2", "--tag", "two")
    assert again.exit_code == 0, again.stderr
    assert again.stderr.count("--tag two does not name") == 1
    assert {run.tag for run in list_runs((), tmp_path / "runs")} == {"grid", "two"}
    assert "1 of 2 cells: nothing to do" in again.stderr
    assert "[2/2] seed=2: finished" in again.stderr
    rows = [line.split() for line in again.stdout.splitlines() if line.startswith("seed=")]
    assert [row[:2] for row in rows] == [["seed=1", "finished"], ["seed=2", "finished"]]
    assert Run.open(rows[1][-1]).recipe.training.seed == 2


def test_a_sweep_on_data_that_is_not_prepared_starts_no_cell(copying_file: Path, tmp_path: Path) -> None:
    where = ["--data", tmp_path / "data", "--runs", tmp_path / "runs"]
    with pytest.raises(DataError, match="phmctl prepare-data copying"):
        call("train", copying_file, *where, "--seed", "1,2")
    assert not (tmp_path / "runs").exists()
    assert call("train", copying_file, *where, "--seed", "1,2", "--list").exit_code == 0


def test_a_stopped_sweep_is_resumed_to_the_same_weights(
    train_copying: list[object], copying_data: Path, tmp_path: Path
) -> None:
    """After SIGTERM the training saves; the same command finishes it and starts the waiting training."""
    command = [*train_copying, *_long_sweep(100)]
    process = _start_training(command, tmp_path / "runs/copying/phm-n2/v001")
    process.send_signal(signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert "2 of 2 cells are not finished" in errors
    assert [line.split()[1] for line in out.splitlines() if line.startswith("seed=")] == ["stopped", "waiting"]
    (stopped,) = known(tmp_path / "runs").values()
    assert (stopped.state, 0 < stopped.step < 100) == ("stopped", True)

    assert call(*command).stdout.count("finished") == 2
    runs = known(tmp_path / "runs")
    assert {run.state for run in runs.values()} == {"finished"}
    changes = {"steps": 100, "save_every": 100, "validate_every": 100, "log_every": 1}
    undisturbed = train(copying_recipe(n=2, **changes), data=copying_data, runs=tmp_path / "other", quiet=True).run
    assert runs[2, 1].recipe == undisturbed.recipe
    digests = [run.weights("last").sha256 for run in (runs[2, 1].run, undisturbed)]
    assert digests[0] == digests[1]


def test_the_trainings_of_a_killed_sweep_save_and_end(train_copying: list[object], tmp_path: Path) -> None:
    """Trainings notice that the sweep was killed, save and end; the same command resumes them."""
    runs = [tmp_path / f"runs/copying/phm-n2/v00{number}" for number in (1, 2)]
    process = _start_training([*train_copying, *_long_sweep(10_000), "--jobs", 2], *runs)
    process.kill()
    process.communicate(timeout=60)
    deadline = time.monotonic() + 60
    while {run.state for run in known(tmp_path / "runs").values()} != {"stopped"} and time.monotonic() < deadline:
        time.sleep(0.1)
    summaries = known(tmp_path / "runs").values()
    assert [(run.state, 0 < run.step < 10_000) for run in summaries] == [("stopped", True)] * 2


def _long_sweep(steps: int) -> list[str]:
    settings = (f"steps={steps}", "save_every=100", "validate_every=100", "log_every=1")
    return ["--seed", "1,2", *(f"--set=training.{setting}" for setting in settings)]


def _start_training(command: list[object], *runs: Path) -> subprocess.Popen[str]:
    """Start a sweep; return when each of these runs has trained a step."""
    process = start(*command)
    deadline = time.monotonic() + 120
    while not all(read_metrics(run / "metrics.jsonl") for run in runs) and time.monotonic() < deadline:
        time.sleep(0.05)
    return process


def test_the_listed_commands_train_the_cells(train_copying: list[object], tmp_path: Path) -> None:
    grid = ["--n", "1,2", "--seed", "1,2", "--steps", 2, "--set", 'description="a, b"']
    listed = call(*train_copying, *grid, "--list")
    commands = listed.stdout.splitlines()
    assert len(commands) == 4
    assert not (tmp_path / "runs").exists()
    name, *arguments = shlex.split(commands[1])
    assert name == "phmctl"
    for message in ("finished after", "1 of 1 cells: nothing to do"):
        assert message in call(*arguments).stderr
    ((n, seed),) = known(tmp_path / "runs")
    assert (n, seed) == (1, 2)
    assert known(tmp_path / "runs")[1, 2].recipe.description == "a, b"
