"""The state of the random generators that training draws from, as tensors."""

from collections.abc import Mapping

import torch
from torch import Tensor


def random_state(device: torch.device) -> dict[str, Tensor]:
    """Return the generators' states as uint8 tensors on the host: ``cpu``, and ``cuda`` where `device` is one.

    Reading CUDA's state does not wait for the device.
    """
    state = {"cpu": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def set_random_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    """Put back what :func:`random_state` gave; a CUDA state is skipped on the CPU, and the other way round."""
    torch.set_rng_state(state["cpu"].cpu())
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"].cpu(), device)
