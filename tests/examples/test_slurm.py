"""``examples/slurm.sbatch`` on two processes of this machine, with stand-ins for SLURM's commands."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from phmctl.runs import Run

ROOT = Path(__file__).parent.parent.parent
SCRIPT = ROOT / "examples" / "slurm.sbatch"


def _submit(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start the script as a job of one node with two GPUs; `folder` records the calls of ``scontrol``."""
    commands = folder / "bin"
    commands.mkdir(exist_ok=True)
    scripts = {
        "srun": 'exec "$@"',
        "torchrun": f'exec "{sys.executable}" -m torch.distributed.run "$@"',
        "scontrol": f'echo "$@" >> "{folder}/scontrol"; echo localhost',
    }
    for name, text in scripts.items():
        (commands / name).write_text(f"#!/bin/sh\n{text}\n")
        (commands / name).chmod(0o755)
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    script = folder / "slurm.sbatch"
    script.write_text(SCRIPT.read_text().replace("29500", str(port)))
    slurm = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1", "SLURM_GPUS_ON_NODE": "2", "SLURM_JOB_NODELIST": "node[1]"}
    environment = os.environ | slurm | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    environment["PATH"] = f"{commands}:{os.environ['PATH']}"
    command = ["bash", str(script), "hamilton", "--set", "training.accumulate=2", "--runs", str(folder / "runs")]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([*command, *arguments], env=environment, cwd=ROOT, **pipes)


def _only_run(folder: Path) -> Run:
    [path] = (folder / "runs").glob("*/*/v*")
    return Run.open(path)


def test_a_job_trains_one_run_on_two_processes_and_one_of_them_speaks(tmp_path: Path) -> None:
    job = _submit(tmp_path, "--steps", "4", "--json")
    out, err = job.communicate(timeout=120)
    assert job.returncode == 0, err
    assert json.loads(out)["steps"] == 4  # rank 0 alone prints
    assert err.count("training ") == 1
    run = _only_run(tmp_path)
    assert run.environment()["processes"] == 2
    assert run.checkpoint("last").name == "step-000004"


@pytest.mark.slow
def test_a_job_near_its_limit_saves_and_is_queued_again(tmp_path: Path) -> None:
    options = ["--steps", "2000", "--set", "training.log_every=5"]
    job = _submit(tmp_path, *options)
    until = time.monotonic() + 120
    while not any(path.stat().st_size for path in tmp_path.glob("runs/*/*/*/metrics.jsonl")):
        assert time.monotonic() < until
        time.sleep(0.1)
    job.send_signal(signal.SIGTERM)
    job.communicate(timeout=120)
    assert job.returncode == 143
    assert (tmp_path / "scontrol").read_text().splitlines()[-1] == "requeue 7"
    saved = int(_only_run(tmp_path).checkpoint("last").name.removeprefix("step-"))
    assert 0 < saved < 2000
    again = _submit(tmp_path, *options)
    _, err = again.communicate(timeout=240)
    assert again.returncode == 0, err
    assert _only_run(tmp_path).checkpoint("last").name == "step-002000"
