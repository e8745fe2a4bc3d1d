"""Shrink a trained CNN and heal it by distillation (docs/shrink.md).

    python examples/heal.py --n 4              # sums of 4 Kronecker products
    python examples/heal.py --share 0.25       # products of low rank with a quarter of the numbers

The CNN reads scikit-learn's digits. It is trained, converted, and trained to predict the probabilities of its dense
self. This needs inputs, no labels.
"""

import argparse
import tempfile
import time
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import phmctl

Batch = tuple[Tensor, Tensor]  # inputs and labels


class CNN:
    """A CNN for images of digits, which training shifts by up to one pixel; the last 500 images are the test set."""

    rate = 1e-3  # of the dense network

    def __init__(self) -> None:
        digits: Any = load_digits()
        order = torch.randperm(len(digits.target), generator=torch.Generator().manual_seed(0))
        self.images = torch.tensor(digits.images, dtype=torch.float32)[order, None] / 16  # (1797, 1, 8, 8)
        self.labels = torch.tensor(digits.target)[order]

    def network(self) -> nn.Module:
        convolutions = nn.Conv2d(1, 32, 3, padding=1), nn.Conv2d(32, 64, 3, padding=1), nn.Conv2d(64, 64, 3)
        layers = [layer for convolution in convolutions for layer in (convolution, nn.ReLU())]
        return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64 * 36, 128), nn.ReLU(), nn.Linear(128, 10))

    def batch(self) -> Batch:
        rows, (down, right) = torch.randint(1297, (64,)), torch.randint(3, (2,)).tolist()
        padded = F.pad(self.images[rows], (1, 1, 1, 1))
        return padded[:, :, down : down + 8, right : right + 8], self.labels[rows]

    def test(self) -> Batch:
        return self.images[1297:], self.labels[1297:]


def train(network: nn.Module, task: CNN, steps: int) -> None:
    """Train on the labels."""
    optimiser = torch.optim.Adam(network.parameters(), task.rate)
    schedule = torch.optim.lr_scheduler.LinearLR(optimiser, 1.0, 0.0, steps)
    network.train()
    for _ in range(steps):
        inputs, labels = task.batch()
        optimiser.zero_grad()
        F.cross_entropy(network(inputs), labels).backward()
        optimiser.step()
        schedule.step()
    network.eval()


@torch.no_grad()
def accuracy(network: nn.Module, test: Batch) -> float:
    """Return the fraction of correct predictions."""
    return (network(test[0]).argmax(1) == test[1]).float().mean().item()


def shrink(task: CNN, n: int, share: float | None, steps: int, seed: int) -> list[float]:
    """Return the accuracies of a dense network, of its conversion, and after healing."""
    torch.manual_seed(seed)
    dense, test = task.network(), task.test()
    train(dense, task, steps)
    small, report = phmctl.convert(dense, None if share else n, share=share)
    accuracies = [accuracy(dense, test), accuracy(small, test)]
    batches = (task.batch()[0] for _ in repeat(None))
    phmctl.heal(small, dense, batches, steps=steps, target="probabilities")
    accuracies.append(accuracy(small, test))
    with tempfile.TemporaryDirectory() as folder:
        phmctl.save(small, Path(folder, "small"))
        loaded = phmctl.load_into(task.network(), Path(folder, "small")).eval()
        size = Path(folder, "small", "model.safetensors").stat().st_size
    if not torch.equal(loaded(test[0]), small(test[0])):
        raise SystemExit("the loaded network is not the saved one")
    if seed == 0:
        print(report, f"{size:,} bytes saved", sep="\n")
    return accuracies


def main() -> None:
    """Shrink the network with each seed, and print the mean accuracies."""
    parser = argparse.ArgumentParser(description="Shrink a trained network and heal it.")
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--share", type=float, help="products of low rank with this share of the numbers, without n")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=1000, help="steps of training, and of healing")
    options = parser.parse_args()
    started = time.perf_counter()
    seeds = [shrink(CNN(), options.n, options.share, options.steps, seed) for seed in range(options.seeds)]
    for stage, values in zip(("dense", "converted", "healed"), zip(*seeds, strict=True), strict=True):
        print(f"{stage:9}  {sum(values) / len(values):.4f}  {' '.join(f'{value:.4f}' for value in values)}")
    print(f"{(time.perf_counter() - started) / 60:.1f} minutes, {options.seeds} seeds")


if __name__ == "__main__":
    main()
