"""A process that dies or hangs: the others stop in time, save nothing half, and what is saved is gone on from."""

import random
import signal
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from phmctl.checkpoints import read_checkpoint, saved_steps
from phmctl.runs import Run
from phmctl.training.processes import is_loss
from tests.training import jobs, together
from tests.training.jobs import curve, weights

LONG = {"accumulate": 4, "steps": 5000, "save_every": 7, "validate_every": 5000, "log_every": 5, "keep": 2}


def _lose(folder: Path, lost: int, number: signal.Signals, seconds: float, count: int = 2) -> Path:
    """Train, send a process a signal after some time, and return the run once the others have ended."""
    processes = together.start(folder, [(jobs.slow, {"root": folder, **LONG})], count, timeout=4)
    try:
        _wait_for([folder / f"reached-{rank}" for rank in range(count)])
        time.sleep(seconds)
        processes[lost].send_signal(number)
        codes = [process.wait(timeout=60) for rank, process in enumerate(processes) if rank != lost]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert all(code == 1 for code in codes)
    for rank in set(range(count)) - {lost}:
        assert f"PeerError: rank {rank}: another process" in (folder / f"stderr-{rank}").read_text()
    return Run.open(folder / "fake").folder


def _wait_for(paths: list[Path]) -> None:
    until = time.monotonic() + 300  # a busy machine needs a minute to import torch
    while not all(path.exists() for path in paths) and time.monotonic() < until:
        time.sleep(0.05)


def _goes_on(run: Path, tmp_path: Path) -> None:
    """All that is saved is whole, and a training from there ends as one that nobody disturbed."""
    steps = saved_steps(Run.open(run).checkpoints_folder)
    for step in steps:
        read_checkpoint(Run.open(run).checkpoint(str(step)), ["model", "optimizer"])
    end = (steps[-1] if steps else 0) + 5
    for folder, old in ((tmp_path / "whole", None), (tmp_path, run)):
        task, recipe = jobs.FakeTask(), jobs.make_recipe(**(LONG | {"steps": end}))
        result = jobs.train_task(task, recipe, folder, quiet=True, old=old and Run.open(old))
        assert result.steps == end
    torch.testing.assert_close(weights(run), weights(tmp_path / "whole/fake/phm-n4/v001"), rtol=1e-5, atol=1e-6)
    logged = [int(step) for (step,) in curve(run, "train", "step")]
    assert logged == sorted(set(logged))


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGSTOP, marks=pytest.mark.slow)])
def test_a_process_that_dies_or_hangs_ends_the_others_and_the_training_goes_on(
    tmp_path: Path, number: signal.Signals
) -> None:
    _goes_on(_lose(tmp_path / "cut", 1, number, 0.5), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_kills_at_random_steps_of_random_ranks(tmp_path: Path, seed: int) -> None:
    """Of four processes; rank 0, which writes and keeps the store, among them."""
    chance = random.Random(seed)
    lost = chance.randrange(4) if seed else 0
    _goes_on(_lose(tmp_path / "cut", lost, signal.SIGKILL, chance.uniform(0, 3), count=4), tmp_path)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("CUDA error: the launch timed out and was terminated"), False),
        (RuntimeError("Error(s) in loading state_dict: cannot restore"), False),
        (ConnectionError("the store is gone"), False),
        (RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer"), True),
        (RuntimeError("Application timeout caused pair closure"), True),
        (dist.DistStoreError("wait timeout after 4000ms"), True),
        (RuntimeError("cannot open /data/gloomy/x.bin"), False),
        (dist.DistBackendError("NCCL error: ncclUnhandledCudaError, out of memory"), False),
    ],
)
def test_only_an_exchange_that_failed_is_a_lost_process(error: Exception, expected: bool) -> None:
    assert is_loss(error) is expected
