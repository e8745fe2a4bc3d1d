"""Where this process runs: its rank among others, the processor, the device, the threads, the compilers."""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phmctl.errors import RecipeError, UserError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class World:
    """Which of several processes this is, by the variables that ``torchrun`` sets."""

    rank: int = 0  # to `size` − 1; rank 0 writes and prints
    size: int = 1  # processes on all machines
    local_rank: int = 0  # on this machine
    local_size: int = 1


def world() -> World:
    """Return this process's rank; without ``torchrun``, or with one process of it, there is no other."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = [os.environ.get(name, "") for name in names]
    if not all(value.isdecimal() for value in values) or int(values[1]) < 2:
        return World()
    return World(*map(int, values))


def processor_name() -> str | None:
    """Return what the processor calls itself: speeds compare on equal ones only. None where that is not known."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def pick_device(name: str) -> "torch.device":
    """Return the device of that name; ``auto`` is the first CUDA device, if there is one. RecipeError: none here."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    device = None
    with suppress(RuntimeError):
        device = torch.device(name)
    if device is None or device.type not in ("cpu", "cuda"):
        raise RecipeError(f"device {name!r} is not known; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RecipeError(
            f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu or auto"
        )
    return device


def set_threads(threads: int) -> None:
    """Set the CPU threads of torch and of other engines of this process; 0 leaves their own choice.

    Without torch it is not imported: a library that is loaded later reads the environment.
    """
    if not threads:
        return
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def seed_generators(device: "torch.device", seed: int) -> None:
    """Seed torch's generator of the CPU, and of the GPUs if `device` is one. Waits for no device."""
    import torch

    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed_all(seed)


@contextmanager
def isolated(device: "torch.device", threads: int) -> Iterator[None]:
    """Set torch's CPU threads (0: leave them) within the block; they and the generators are as before after it."""
    import torch

    before = torch.get_num_threads()
    with torch.random.fork_rng(devices=range(torch.cuda.device_count() if device.type == "cuda" else 0)):
        if threads:
            torch.set_num_threads(threads)
        try:
            yield
        finally:
            if threads:
                torch.set_num_threads(before)


def has_bfloat16(device: "torch.device") -> bool:
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    # torch's own check calls any x86 CPU with AVX-512 able, though without these it computes in float32 and rounds.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    probes = [getattr(torch.cpu, name) for name in names if hasattr(torch.cpu, name)]  # private: they may vanish
    if probes and platform.machine() in ("x86_64", "AMD64"):
        return any(probe() for probe in probes)
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def takes_bfloat16(device: "torch.device", setting: str) -> bool:
    """Return whether a setting of bfloat16 can be followed on a device; warns where it cannot."""
    if has_bfloat16(device):
        return True
    from phmctl.console import warn

    warn(f"{setting} = bfloat16: {device.type} has no bfloat16 arithmetic here; float32 is used")
    return False


def check_compiler(device: "torch.device") -> None:
    """Refuse (RecipeError) ``training.compile`` where torch.compile finds no compiler for a device."""
    if device.type == "cuda":
        missing = None if importlib.util.find_spec("triton") else "Triton"
    else:
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
        missing = None if shutil.which(compiler) else f"a C++ compiler ({compiler})"
    if missing:
        raise RecipeError(f"training.compile = true needs {missing}, which is not installed; install it or use false")


_A_CORE = 8  # processes: more only wait for one another, and 1,000 bring a machine down


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_jobs(jobs: int, option: str = "--jobs") -> None:
    """Refuse (UserError) so many processes that a machine comes to a stand."""
    if jobs > _A_CORE * cores():
        raise UserError(f"{option} {jobs}: this machine has {cores()} cores; take {_A_CORE * cores()} at most")
