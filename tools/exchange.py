"""Measure the bytes that two processes exchange in a step of a recipe, with A and S and for its dense twin.

::

    torchrun --nproc-per-node 2 tools/exchange.py multi30k-de-en --set model.algebra=phm --set model.n=4

`gradients` is the size of the tensor that the processes sum, `sent` the bytes that each process gives to the network.
"""

import argparse
import sys
from pathlib import Path

import torch
from torch import nn

from phmctl.benchmarks import variants_of
from phmctl.models.transformer import Transformer
from phmctl.nn.step import Leaves
from phmctl.processes import Processes, joined
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import TranslationRecipe

VOCABULARY = 8000


def sent_bytes() -> int:
    """Return the bytes that all processes of this machine have sent to each other."""
    (line,) = (line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:"))
    return int(line.split()[9])


def train_step(model: nn.Module, processes: Processes) -> tuple[int, int]:
    """Train on one micro-batch a process; return the bytes of the gradients, and those that a process sent."""
    parameters = list(model.parameters())
    tokens = torch.randint(4, VOCABULARY, (2, 9), generator=torch.Generator().manual_seed(processes.rank))
    with Leaves(model).active():
        model(tokens, tokens[:, :-1], tokens[:, 1:], 0.0)[0].backward()
    processes.gather(None)  # all wait here
    before = sent_bytes()
    processes.sum_gradients(parameters)
    processes.gather(None)
    sent = (sent_bytes() - before) // processes.count
    return sum(parameter.grad.nbytes for parameter in parameters if parameter.grad is not None), sent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    options = parser.parse_args()
    recipe = expect(load_recipe(options.recipe, options.set), TranslationRecipe)
    with joined(60) as processes:
        for name, variant in variants_of(recipe).items():
            gradients, sent = train_step(Transformer(variant.model, VOCABULARY, VOCABULARY), processes)
            if processes.leads:
                sys.stdout.write(f"{name}: gradients {gradients / 1e6:.1f} MB, sent {sent / 1e6:.1f} MB\n")


if __name__ == "__main__":
    main()
