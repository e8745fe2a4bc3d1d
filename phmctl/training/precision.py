"""The arithmetic of the forward pass: float32, or bfloat16 where the device has it."""

from contextlib import nullcontext

import torch

from phmctl.devices import takes_bfloat16
from phmctl.tasks.base import Autocast


def build_autocast(device: torch.device, precision: str) -> Autocast:
    """Return a function that gives the context of one forward pass.

    ``bfloat16`` is torch's autocast, with float32 weights; where the device would only emulate it, more slowly than
    float32 is computed, a warning says that float32 is used.
    """
    if precision == "float32" or not takes_bfloat16(device, "training.precision"):
        return nullcontext
    return lambda: torch.autocast(device.type, dtype=torch.bfloat16)
