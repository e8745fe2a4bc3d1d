"""Print how far a first step of Adam moves the states of the LSTM of `snli-counterfactual`, for n = 1, 2, 5 and 10.

The figures are root mean squares over 64 first texts, means of seeds 1 and 2. Prepare the data first:
``phmctl prepare-data snli-counterfactual``.
"""

from statistics import fmean
from typing import Any

import numpy as np
import torch
from torch import Tensor

from phmctl.console import emit
from phmctl.data import PAD
from phmctl.data.prepared import data_root
from phmctl.recipe.loading import load_recipe
from phmctl.tasks import trains
from phmctl.training.optimiser import build_optimiser


def change_of_states(n: int, seed: int) -> float:
    """Return the root mean square of the change of h in a step on 64 pairs, without dropout."""
    algebra = "phm" if n > 1 else "real"
    settings = [f"model.n={n}", f"model.algebra={algebra}", "model.dropout=0", f"training.seed={seed}"]
    recipe = load_recipe("snli-counterfactual", settings)
    task = trains(recipe).open(recipe, data_root())
    torch.manual_seed(seed)
    model: Any = task.build_model(torch.device("cpu"))
    optimiser = build_optimiser(model, recipe.training)
    rows = np.concatenate(task.plan(0)[:2])  # two batches of 32
    batch = task.collate(rows)
    ids = batch.sides[0]  # (64, S)
    mask = ids != PAD
    embedded = model.embedding(ids).detach()  # (64, S, e)

    def states() -> Tensor:
        """Return h at all tokens, (tokens, h)."""
        h: Tensor = model.lstm(embedded, mask.sum(1))[0].detach()
        return h[mask]

    before = states()
    loss, count = task.loss(model, batch)
    (loss / count).backward()  # type: ignore[no-untyped-call]
    optimiser.step()
    return (states() - before).square().mean().sqrt().item()


def main() -> None:
    changes = {n: fmean(change_of_states(n, seed) for seed in (1, 2)) for n in (1, 2, 5, 10)}
    for n, change in changes.items():
        emit(f"n = {n}: {change:.4f}, {change / changes[1]:.2f} of n = 1\n")


if __name__ == "__main__":
    main()
