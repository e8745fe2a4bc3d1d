"""Convert a trained dense network to PHM maps, and recover its accuracy by distillation.

    python examples/heal.py

A network learns which of 16 hidden prototypes a noisy vector comes from, up to its sign. The weights of its linear
layers become the nearest sums of Kronecker products (n = 4), with a quarter of the parameters. The converted network is
then trained for some hundred steps to predict the dense network's probabilities. This needs inputs but no labels.
"""

import argparse
import sys
import time

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import phmctl

CLASSES, WIDTH, NOISE = 16, 256, 2.5


def draw(prototypes: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Return noisy prototypes (count, WIDTH) with random signs, and their labels.

    A prototype and its negative have the same label, so that no linear map can separate the classes.
    """
    labels = torch.randint(0, CLASSES, (count,))
    signs = torch.randint(0, 2, (count, 1)) * 2 - 1
    return signs * prototypes[labels] + NOISE * torch.randn(count, WIDTH), labels


def train(model: nn.Module, prototypes: Tensor, steps: int, teacher: nn.Module | None = None) -> None:
    """Train on the labels, or on a teacher's probabilities."""
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = 1e-3 * (1 - step / steps)
        x, labels = draw(prototypes, 256)
        logits = model(x)
        target = labels
        if teacher is not None:
            with torch.no_grad():
                target = teacher(x).softmax(1)
        loss = F.cross_entropy(logits, target)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()


@torch.no_grad()
def accuracy(model: nn.Module, test: tuple[Tensor, Tensor]) -> float:
    """Return the fraction of correct predictions."""
    return (model(test[0]).argmax(1) == test[1]).float().mean().item()


def main() -> None:
    """Train, convert and distil a network, and print the accuracy after each step."""
    parser = argparse.ArgumentParser(description="Convert a dense network to PHM maps and heal it.")
    parser.add_argument("--n", type=int, default=4)
    parser.add_argument("--steps", type=int, default=500, help="steps of distillation")
    options = parser.parse_args()
    torch.manual_seed(0)
    prototypes = torch.randn(CLASSES, WIDTH)
    test = draw(prototypes, 8192)
    dense = nn.Sequential(nn.Linear(WIDTH, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, CLASSES))
    train(dense, prototypes, 1500)
    converted, report = phmctl.convert(dense, options.n)
    lines = [str(report), f"dense       accuracy {accuracy(dense, test):.3f}"]
    lines.append(f"converted   accuracy {accuracy(converted, test):.3f}")
    started = time.perf_counter()
    train(converted, prototypes, options.steps, dense)
    seconds = time.perf_counter() - started
    lines.append(f"healed      accuracy {accuracy(converted, test):.3f}  ({seconds:.0f} s, {options.steps} steps)")
    lines.append(f"as nn.Linear again    {accuracy(phmctl.to_dense(converted), test):.3f}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
