"""The processes, processor, device and compilers that are available to this process."""

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

from phmctl.console import warn
from phmctl.errors import RecipeError

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class World:
    """The rank of this process and the number of processes, from the environment variables of ``torchrun``."""

    rank: int = 0  # 0 to `size` − 1. Rank 0 writes and prints.
    size: int = 1  # processes on all machines
    local_rank: int = 0  # on this machine
    local_size: int = 1  # processes on this machine


def world() -> World:
    """Return this process's rank. Without ``torchrun``, and with one process, it is alone."""
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
    """Return the device with a name. ``auto`` is the first CUDA device, or the CPU. Raises RecipeError."""
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


@contextmanager
def isolated(device: "torch.device", threads: int) -> Iterator[None]:
    """Restore torch's random generators after the block.

    `threads` threads compute from here on, also after the block (0: as many as before).
    """
    import torch

    if threads:
        torch.set_num_threads(threads)
    with torch.random.fork_rng(devices=range(torch.cuda.device_count() if device.type == "cuda" else 0)):
        yield


@contextmanager
def torch_defaults() -> Iterator[None]:
    """Compute in the block with float32 as the default dtype, whatever the caller has set."""
    import torch

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        yield
    finally:
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
    """Return whether a device computes in bfloat16. If not, warn that the setting is ignored."""
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
