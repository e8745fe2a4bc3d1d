"""Several processes for a test: each runs a list of jobs together with the others, so starting them is paid for once.

``python -m tests.training.together FILE``, with torchrun's variables in the environment, runs the jobs in FILE.
"""

import os
import pickle
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from phmctl.training.processes import Processes, joined

Job = tuple[Callable[..., Any], dict[str, Any]]
ROOT = Path(__file__).parents[2]


def start(folder: Path, jobs: Sequence[Job], count: int, *, timeout: float = 60) -> list[subprocess.Popen[str]]:
    """Start `count` processes that run the jobs; each job is a module's function, called with `processes=` too."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "jobs").write_bytes(pickle.dumps((list(jobs), timeout)))
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "localhost", "MASTER_PORT": port}
    started = []
    for rank in range(count):
        own = {key: str(value) for key, value in (common | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        environment = os.environ | own | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (folder / f"stderr-{rank}").open("w") as errors:
            command = [sys.executable, "-m", "tests.training.together", str(folder)]
            started.append(subprocess.Popen(command, env=environment, cwd=ROOT, stderr=errors, text=True))
    return started


def run(folder: Path, jobs: Sequence[Job], count: int) -> list[list[Any]]:
    """Return what each job returned in each process; what it raised stands there as text."""
    processes = start(folder, jobs, count)
    codes = [process.wait(timeout=300) for process in processes]
    said = "".join((folder / f"stderr-{rank}").read_text() for rank in range(count))
    if any(codes) or "Warning:" in said:
        raise AssertionError(said)
    found = [pickle.loads((folder / f"found-{rank}").read_bytes()) for rank in range(count)]
    return [list(each) for each in zip(*found, strict=True)]


def _main(folder: Path) -> None:
    jobs, timeout = pickle.loads((folder / "jobs").read_bytes())
    torch.set_num_threads(1)
    found = []
    with joined(timeout) as processes:
        for job, arguments in jobs:
            found.append(_outcome(job, arguments, processes))
    (folder / f"found-{processes.rank}").write_bytes(pickle.dumps(found))


def _outcome(job: Callable[..., Any], arguments: dict[str, Any], processes: Processes) -> Any:
    try:
        return job(**arguments, processes=processes)
    except (Exception, SystemExit) as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
