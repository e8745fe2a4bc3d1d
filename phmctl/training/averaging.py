"""Averaging the last checkpoints: one model whose weights are their mean (Vaswani et al. 2017, §6.1)."""

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from phmctl.checkpoints import AVERAGE, read_checkpoint, step_name, write_checkpoint
from phmctl.files import discard, writing


def average_checkpoints(folder: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """Average the models of some steps, write the checkpoint ``average`` and return its tensors.

    Sums are taken in float64; tensors of integers are those of the newest step.

    Args:
        folder: the run's checkpoints.
        steps: which, ascending; at least one.

    Raises:
        RunError: a checkpoint is missing or damaged.
        OutputError: the folder cannot be written.
    """
    sums: dict[str, Tensor] = {}
    newest: dict[str, Tensor] = {}
    for step in steps:
        newest = read_checkpoint(folder / step_name(step), ["model"]).tensors["model"]
        for name, tensor in newest.items():
            sums[name] = sums[name] + tensor if name in sums else tensor.to(torch.float64)
    means = {name: _mean(total, len(steps), newest[name]) for name, total in sums.items()}
    write_checkpoint(folder / AVERAGE, {"model": means}, {"steps": list(steps)})
    return means


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


def _mean(total: Tensor, count: int, like: Tensor) -> Tensor:
    return (total / count).to(like.dtype) if like.is_floating_point() else like
