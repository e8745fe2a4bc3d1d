"""Averaging the last checkpoints: one model whose weights are their mean (Vaswani et al. 2017, §6.1)."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from phmctl.checkpoints import AVERAGE, read_checkpoint, step_name, write_checkpoint
from phmctl.files import discard, writing


def average_checkpoints(folder: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """Average the models of some steps, write the checkpoint ``average`` and return its tensors.

    Sums are taken in float64; tensors of integers are those of the newest step. What is read stays in its file until it
    is wanted (safetensors maps it), so the host holds one tensor at a time.

    Args:
        folder: the run's checkpoints.
        steps: which, ascending; at least one.

    Raises:
        RunError: a checkpoint is missing or damaged.
        OutputError: the folder cannot be written.
    """
    models = [read_checkpoint(folder / step_name(step), ["model"]).tensors["model"] for step in steps]
    names = {id(tensor): name for name, tensor in models[-1].items()}

    def mean(newest: Tensor) -> Tensor:
        return _mean([model[names[id(newest)]] for model in models])

    write_checkpoint(folder / AVERAGE, {"model": models[-1]}, {"steps": list(steps)}, mean)
    return read_checkpoint(folder / AVERAGE, ["model"]).tensors["model"]


def averaged_steps(folder: Path) -> list[int]:
    """Return the steps that ``average`` was made of, or an empty list.

    Raises:
        RunError: it is damaged.
    """
    if not (folder / AVERAGE).is_dir():
        return []
    return list(read_checkpoint(folder / AVERAGE, []).state["steps"])


def discard_average(folder: Path) -> None:
    """Remove ``average``, if it is there: training goes on from here, so it will be made of other steps.

    Raises:
        OutputError: it cannot be removed.
    """
    with writing(folder):
        if (folder / AVERAGE).is_dir():
            discard(folder / AVERAGE)


def _mean(tensors: Sequence[Tensor]) -> Tensor:
    newest = tensors[-1]
    if not newest.is_floating_point():
        return newest
    total = sum((tensor.to(torch.float64) for tensor in tensors[1:]), tensors[0].to(torch.float64))
    return (total / len(tensors)).to(newest.dtype)
