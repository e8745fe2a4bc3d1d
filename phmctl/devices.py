"""The processes, processor, device, threads and compilers that are available to this process."""

import importlib.util
import os
import platform
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from phmctl.console import warn
from phmctl.errors import RecipeError, UserError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class World:
    """The rank of this process and the number of processes, from the environment variables of ``torchrun``."""

    rank: int = 0  # 0 to `size` − 1; rank 0 writes and prints
    size: int = 1  # processes on all machines
    local_rank: int = 0  # on this machine
    local_size: int = 1  # processes on this machine


def world() -> World:
    """Return this process's rank; without ``torchrun``, and with one process, it is alone."""
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
    values = [os.environ.get(name, "") for name in names]
    if not all(value.isdecimal() for value in values) or int(values[1]) < 2:
        return World()
    return World(*map(int, values))


def processor_name() -> str | None:
    """Return the name of the processor, or None if it is unknown. Speeds are comparable on equal processors only."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").split("\n")
    except (OSError, ValueError):
        return platform.processor() or None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def pick_device(name: str) -> "torch.device":
    """Return the device with a name; ``auto`` is the first CUDA device, or the CPU. Raises RecipeError."""
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
    """Set the CPU threads of torch and of other engines in this process; 0 keeps their defaults.

    Torch is not imported for this; libraries that are imported later read the environment variable.
    """
    if not threads:
        return
    os.environ["OMP_NUM_THREADS"] = str(threads)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


_lock = threading.Lock()
_isolation = threading.Lock()  # held in the block of `isolated`


@contextmanager
def isolated(device: "torch.device", threads: int) -> Iterator[None]:
    """Set torch's CPU threads in the block (0 keeps them); restore threads and random generators afterwards.

    Raises UserError if another thread of the process is in such a block: both would draw from the same generators.
    """
    import torch

    if not _isolation.acquire(blocking=False):
        raise UserError(
            "another thread of this process is training, and both would use torch's random numbers and threads; "
            "wait for it, or train in a process of its own: phmctl train"
        )
    before = torch.get_num_threads()
    try:
        gpus = torch.cuda.device_count() if device.type == "cuda" else 0
        with torch.random.fork_rng(devices=range(gpus)):
            if threads:
                torch.set_num_threads(threads)
            yield
    finally:
        if threads:
            torch.set_num_threads(before)
        _isolation.release()


_changed: list["torch.dtype"] = []  # the process's default dtype, once for each block that replaces it now


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Compute in the block as in a fresh process, whatever its caller has set.

    The default dtype is float32, the default device the CPU; gradients are recorded, not in inference mode, and
    autocast is disabled. All but the dtype concern this thread only.
    """
    import torch

    with ExitStack() as stack:
        stack.enter_context(_float32())
        if torch.get_default_device().type != "cpu":
            stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        for device_type in ("cpu", "cuda"):
            if torch.is_autocast_enabled(device_type):
                stack.enter_context(torch.autocast(device_type, enabled=False))
        yield


@contextmanager
def _float32() -> Iterator[None]:
    """Set the default dtype, which all threads share; the last block to end restores it."""
    import torch

    with _lock:
        _changed.append(_changed[-1] if _changed else torch.get_default_dtype())
        torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
        with _lock:
            before = _changed.pop()
            if not _changed:
                torch.set_default_dtype(before)


def has_bfloat16(device: "torch.device") -> bool:
    """Return whether a device computes in bfloat16."""
    import torch

    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():  # also if ONEDNN_MAX_CPU_ISA forbids it
        return False
    # torch's check accepts any x86 CPU with AVX-512, but without one of these it computes in float32 and rounds.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")  # private functions, which may be missing
    probes = [getattr(torch.cpu, name) for name in names if hasattr(torch.cpu, name)]
    return platform.machine() not in ("x86_64", "AMD64") or not probes or any(probe() for probe in probes)


def takes_bfloat16(device: "torch.device", setting: str) -> bool:
    """Return whether a device computes in bfloat16; otherwise warn that the setting is ignored."""
    if has_bfloat16(device):
        return True
    warn(f"{setting} = bfloat16: {device.type} has no bfloat16 arithmetic here; float32 is used")
    return False


def check_compiler(device: "torch.device") -> None:
    """Raise RecipeError if torch.compile (``training.compile``) lacks a compiler for a device."""
    missing = None
    if device.type == "cuda":
        if importlib.util.find_spec("triton") is None:
            missing = "Triton"
    else:
        compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
        if shutil.which(compiler) is None:
            missing = f"a C++ compiler ({compiler})"
    if missing is not None:
        raise RecipeError(f"training.compile = true needs {missing}, which is not installed; install it or use false")


_MAX_JOBS_PER_CORE = 8  # more processes only wait for each other, and 1,000 make a machine unusable


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def check_jobs(jobs: int, option: str = "--jobs") -> None:
    """Raise UserError if the number of processes is far above the number of cores."""
    limit = _MAX_JOBS_PER_CORE * cores()
    if jobs > limit:
        raise UserError(f"{option} {jobs}: this machine has {cores()} cores; use at most {limit}")
