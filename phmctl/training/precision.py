"""The arithmetic of the forward pass: float32, or bfloat16 where the device has it."""

import platform
from contextlib import nullcontext

import torch

from phmctl.console import warn
from phmctl.tasks.base import Autocast

_X86 = ("x86_64", "AMD64")


def build_autocast(device: torch.device, precision: str) -> Autocast:
    """Return a function that gives the context of one forward pass.

    ``bfloat16`` is torch's autocast, with float32 master weights. Where the device would only emulate bfloat16, which
    is slower than float32, a warning says so and float32 is used.
    """
    if precision == "float32":
        return nullcontext
    if not has_bfloat16(device):
        warn(f"training.precision = bfloat16: {device.type} has no bfloat16 arithmetic here; float32 is used")
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)


def has_bfloat16(device: torch.device) -> bool:
    """Return whether the device computes bfloat16 itself."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    # torch's own check calls any x86 CPU with AVX-512 able, though without these it computes in float32 and rounds.
    names = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    probes = [getattr(torch.cpu, name) for name in names if hasattr(torch.cpu, name)]  # private: they may vanish
    if probes and platform.machine() in _X86:
        return any(probe() for probe in probes)
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
