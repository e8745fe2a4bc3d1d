"""Dropout's random numbers: a function of (seed, step, micro-batch), so no checkpoint holds a generator's state.

A resumed step, a step that is run again and the same step on another number of processes all draw the same.
"""

import torch

from phmctl.data.order import mixed

_DROPOUT = 0x64726F70  # keeps these numbers apart from those of the order of batches, which have the seed in common


def seed_dropout(seed: int, step: int, micro_batch: int, piece: int = 0) -> None:
    """Seed the generators of all devices for the forward pass of one micro-batch. Waits for no device.

    Args:
        seed: the run's.
        step: counted from 1.
        micro_batch: of the step, counted from 0.
        piece: of a micro-batch that several processes divide, counted from 0.
    """
    torch.manual_seed(mixed(_DROPOUT, seed, step, micro_batch, piece))
