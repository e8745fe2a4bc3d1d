"""Choosing the device and the number of threads."""

from typing import TYPE_CHECKING

from phmctl.errors import RecipeError

if TYPE_CHECKING:
    import torch


def pick_device(name: str) -> "torch.device":
    """Return the device of that name; ``auto`` is the first CUDA device, if there is one.

    Raises:
        RecipeError: no such device here.
    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise RecipeError(f"device {name!r} is not known; use auto, cpu, cuda or cuda:N") from error
    if device.type not in ("cpu", "cuda"):
        raise RecipeError(f"device {name!r} is not supported; use auto, cpu, cuda or cuda:N")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise RecipeError(
            f"device {name!r}: this machine has {torch.cuda.device_count()} CUDA devices; use cpu or auto"
        )
    return device


def set_threads(threads: int) -> None:
    """Set torch's CPU threads; 0 leaves its own choice."""
    import torch

    if threads:
        torch.set_num_threads(threads)
