"""Train a small language model with dense maps and with PHM maps, at one learning rate and at rates for each factor.

    python examples/rates.py

The model predicts the next character of the built-in miniature: two Transformer layers of width 256, 400 steps of Adam
with 8 × 64 characters. With one rate all parameters have the rate of the row. With ``phmctl.parameter_groups`` the
tables, norms and biases have it; a dense map of d inputs has 64/d of it, and A and S have rates that fit their scales.
"""

import argparse
import bz2
from collections.abc import Callable
from functools import partial
from importlib.resources import files

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import phmctl

WIDTH, LAYERS, HEADS, LENGTH = 256, 2, 4, 64


class Block(nn.Module):
    """A layer of a Transformer; `linear` makes its maps."""

    def __init__(self, linear: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query_key_value, self.output = linear(WIDTH, 3 * WIDTH), linear(WIDTH, WIDTH)
        self.expand, self.contract = linear(WIDTH, 4 * WIDTH), linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        projected = self.query_key_value(self.attention_norm(x)).chunk(3, -1)
        query, key, value = (part.view(*x.shape[:2], HEADS, -1).transpose(1, 2) for part in projected)
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.output(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.contract(F.gelu(self.expand(self.norm(x))))


class Characters(nn.Module):
    """A language model of characters."""

    def __init__(self, linear: Callable[[int, int], nn.Module], vocabulary: int) -> None:
        super().__init__()
        self.table, self.positions = nn.Embedding(vocabulary, WIDTH), nn.Embedding(LENGTH, WIDTH)
        nn.init.normal_(self.table.weight, std=0.02)
        nn.init.normal_(self.positions.weight, std=0.02)
        self.blocks = nn.Sequential(*(Block(linear) for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.norm(self.blocks(self.table(ids) + self.positions.weight)))


def loss(model: nn.Module, text: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Return the mean cross entropy of `count` pieces of a text."""
    starts = torch.randint(len(text) - LENGTH - 1, (count, 1), generator=generator)
    pieces = text[starts + torch.arange(LENGTH + 1)]
    return F.cross_entropy(model(pieces[:, :-1]).flatten(0, 1), pieces[:, 1:].flatten())


def train(text: Tensor, n: int, rate: float, grouped: bool, seed: int, steps: int) -> float:
    """Return the loss on the last tenth of the text after training on the rest."""
    torch.manual_seed(seed)
    linear = nn.Linear if n == 1 else partial(phmctl.PHMLinear, n=n)
    model = Characters(linear, int(text.max()) + 1)
    optimiser = torch.optim.Adam(phmctl.parameter_groups(model, rate) if grouped else model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: min(1, (step + 1) / 50) * (1 - step / steps))
    generator, cut = torch.Generator().manual_seed(seed), len(text) * 9 // 10
    for _ in range(steps):
        optimiser.zero_grad()
        loss(model, text[:cut], 8, generator).backward()
        optimiser.step()
        schedule.step()
    generator.manual_seed(0)
    with torch.no_grad():
        return loss(model, text[cut:], 512, generator).item()


def main() -> None:
    """Print the losses of each model and rate."""
    parser = argparse.ArgumentParser(description="Compare one learning rate with rates for each factor.")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    characters = bz2.decompress(files("phmctl").joinpath("miniature.tsv.bz2").read_bytes()).decode()
    numbers = {character: number for number, character in enumerate(sorted(set(characters)))}
    text = torch.tensor([numbers[character] for character in characters])
    for n in (1, 4):
        for rate, grouped in ((1e-3, False), (2e-3, False), (2e-3, True), (4e-3, True)):
            losses = [train(text, n, rate, grouped, seed, options.steps) for seed in range(options.seeds)]
            rates = "parameter_groups" if grouped else "one rate"
            by_seed = " ".join(f"{value:.3f}" for value in losses)
            print(f"n = {n}  {rates:16} {rate:.0e}  loss {sum(losses) / len(losses):.3f}  ({by_seed})", flush=True)


if __name__ == "__main__":
    main()
