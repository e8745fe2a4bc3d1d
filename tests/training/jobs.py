"""Processes for a test that run a list of jobs together.

``python -m tests.training.jobs FOLDER``, with torchrun's variables in the environment, runs the jobs of that folder.
"""

import copy
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import phmctl
from phmctl import PHMLinear
from phmctl.data.prepared import PreparedData
from phmctl.errors import DataError
from phmctl.processes import Processes, joined
from phmctl.recipe.schema import ClassificationRecipe
from phmctl.runs import Run
from phmctl.runs.results import read_metrics
from phmctl.storage import read_checkpoint
from phmctl.tasks.base import Rows
from phmctl.tasks.classification_training import ClassificationTask
from phmctl.tasks.translation_training import TranslationTask
from phmctl.training.train import train_task
from tests.training.copying import copying_recipe
from tests.training.fake import FakeTask, make_recipe

SETTINGS: dict[str, Any] = {
    "steps": 20,
    "accumulate": 4,
    "batch_tokens": 128,
    "clip": 0.5,
    "label_smoothing": 0.1,
    "log_every": 1,
    "validate_every": 10,
    "validate_bleu": True,
    "save_every": 5,
    "keep": 3,
    "average": 2,
}


class DoubleTask(TranslationTask):
    """The Transformer in float64. It remembers the rows that it built."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.built: list[int] = []

    def collate(self, rows: Rows) -> Any:
        self.built += rows.tolist()
        return super().collate(rows)

    def build_model(self, device: torch.device | str | None = None) -> nn.Module:
        return super().build_model(device).double()


def translate(
    data: Path, root: Path, processes: Processes | None = None, old: Path | None = None, **changes: Any
) -> tuple[Path, list[int]]:
    """Train the copying corpus; return the run and the rows that this process built."""
    recipe = copying_recipe(**(SETTINGS | changes))
    bound = DoubleTask(recipe, PreparedData.find(recipe.data, data))
    leads = processes is None or processes.leads
    continued = Run.open(old) if old is not None and leads else None
    result = train_task(bound, recipe, root, old=continued, processes=processes)
    return result.run.folder, bound.built


def exchanged(data: Path, root: Path, processes: Processes, n: int) -> tuple[int, int]:
    """Train one step; return the bytes that this process sent at most at once, and the bytes of all parameters."""
    sent: list[int] = []
    total = processes.total

    def counted(tensor: torch.Tensor) -> torch.Tensor:
        sent.append(tensor.nbytes)
        return total(tensor)

    processes.total = counted  # type: ignore[method-assign]
    try:
        run, _ = translate(data, root / f"n{n}", processes, n=n, steps=1)
    finally:
        del processes.total
    return max(sent), weights(run).nbytes


def wrapped(processes: Processes, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the gradients of a wrapped model in ``phmctl.step``, and the mean of those that each process has alone."""

    def train(called: Any, rank: int) -> None:
        for last in (False, True):
            x = torch.randn(3, 8, generator=torch.Generator().manual_seed(rank)).double() + last
            with nullcontext() if last or called is alone else called.no_sync():
                called(x).square().sum().backward()

    torch.manual_seed(0)
    model = nn.Sequential(PHMLinear(8, 8, n=2), nn.Tanh(), PHMLinear(8, 8, n=2)).double()
    alone = copy.deepcopy(model)
    for rank in range(processes.count):
        train(alone, rank)
    wrapper = DistributedDataParallel(model, **options)
    with phmctl.step(wrapper):
        train(wrapper, processes.rank)
    mine, expected = (
        torch.cat([parameter.grad.flatten() for parameter in trained.parameters()]) for trained in (model, alone)
    )
    return mine, expected / processes.count


class DoubleClassification(ClassificationTask):
    """A classifier in float64."""

    def build_model(self, device: torch.device | str | None = None) -> nn.Module:
        return super().build_model(device).double()


def classify(data: Path, root: Path, recipe: ClassificationRecipe, processes: Processes | None = None) -> Path:
    """Train a classifier; return the run."""
    task = DoubleClassification(recipe, PreparedData.find(recipe.data, data))
    return train_task(task, recipe, root, processes=processes).run.folder


def fake(
    root: Path,
    processes: Processes | None = None,
    poison: tuple[int, int] | None = None,
    stopped: int | None = None,
    refusing: int | None = None,
    slow: bool = False,
    **training: Any,
) -> tuple[Path, int, int]:
    """Train the fake task; return the run, the steps and the exit code.

    Args:
        stopped: this rank is sent SIGTERM in its third micro-batch.
        refusing: this rank refuses its data.
        slow: train slowly, so that a process can be killed meanwhile; each process touches a file.
    """
    rank = processes.rank if processes else 0

    class Task(FakeTask):
        calls = 0

        def check_data(self, runs: Path | None = None) -> None:
            if rank == refusing:
                raise DataError("no data here")

        def loss(self, model: nn.Module, batch: Any) -> Any:
            self.calls += 1
            if slow:
                time.sleep(0.02)
                (root / f"reached-{rank}").touch()
            if rank == stopped and self.calls == 3:
                os.kill(os.getpid(), signal.SIGTERM)
            return super().loss(model, batch)

    result = train_task(Task(poison=poison), make_recipe(**training), root, processes=processes)
    return result.run.folder, result.steps, result.exit_code


# --------------------------------------------------------------- starting them is paid for once for a list of jobs

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
        place = {key: str(value) for key, value in (common | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        environment = os.environ | place | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        with (folder / f"stderr-{rank}").open("w") as errors:
            command = [sys.executable, "-m", "tests.training.jobs", str(folder)]
            started.append(subprocess.Popen(command, env=environment, cwd=ROOT, stderr=errors, text=True))
    return started


def run(folder: Path, jobs: Sequence[Job], count: int) -> list[list[Any]]:
    """Return the results of each job by rank; an exception is represented by its text."""
    processes = start(folder, jobs, count)
    codes = [process.wait(timeout=300) for process in processes]
    errors_text = "".join((folder / f"stderr-{rank}").read_text() for rank in range(count))
    if any(codes) or "Warning:" in errors_text:
        raise AssertionError(errors_text)
    results = [pickle.loads((folder / f"found-{rank}").read_bytes()) for rank in range(count)]
    return [list(by_rank) for by_rank in zip(*results, strict=True)]


def _main(folder: Path) -> None:
    jobs, timeout = pickle.loads((folder / "jobs").read_bytes())
    torch.set_num_threads(1)
    results = []
    with joined(timeout) as processes:
        for job, arguments in jobs:
            try:
                results.append(job(**arguments, processes=processes))
            except (Exception, SystemExit) as error:
                traceback.print_exc()
                results.append(f"{type(error).__name__}: {error}")
    # One that is left may ask for Python when Python ends, and then aborts the process.
    assert not [task for task in Path("/proc/self/task").glob("*/comm") if "gloo" in task.read_text()]
    (folder / f"found-{processes.rank}").write_bytes(pickle.dumps(results))


def weights(folder: Path, name: str = "last") -> torch.Tensor:
    """Return all weights of a run's checkpoint as one vector."""
    tensors = read_checkpoint(Run.open(folder).checkpoint(name), ["model"]).tensors["model"]
    return torch.cat([tensors[key].flatten() for key in sorted(tensors)])


def curve(folder: Path, event: str, *keys: str) -> list[list[float]]:
    """Return figures of a run's log."""
    entries = read_metrics(Run.open(folder).metrics_path)
    return [[entry[key] for key in keys] for entry in entries if entry["event"] == event]


if __name__ == "__main__":
    _main(Path(sys.argv[1]))
