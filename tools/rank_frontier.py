"""Ranks of PHM, and what people take in place of it, against the dense twin: training and decoding, in markdown.

The Transformer of multi30k-de-en with d = 512 and a feed-forward of 2048 (2+2 layers, a vocabulary of 8,000)::

    python tools/rank_frontier.py --threads 2
    python tools/rank_frontier.py --rows n4-r4,low-rank-64 --rounds 3
"""

import sys

import torch

from phmctl.backends.machine import processor
from phmctl.benchmarks.models import measure, named, options, translation
from phmctl.devices import set_threads

WIDE = ("model.width=512", "model.feed_forward=2048", "model.heads=8")


def _phm(n: int, rank: int | None = None) -> tuple[str, ...]:
    dial = () if rank is None else (f"model.rank={rank}",)
    return ("model.algebra=phm", f"model.n={n}", "model.parametrization=factors", *dial)


MODELS: dict[str, tuple[str, ...]] = {
    "base": (),
    "n4": _phm(4),
    "n4-r6": _phm(4, 6),
    "n4-r5": _phm(4, 5),
    "n4-r4": _phm(4, 4),
    "n8": _phm(8),
    "n8-r12": _phm(8, 12),
    "n8-r8": _phm(8, 8),
    "low-rank-128": ("model.algebra=low-rank", "model.rank=128"),
    "low-rank-64": ("model.algebra=low-rank", "model.rank=64"),
    "monarch-4": ("model.algebra=monarch", "model.n=4"),
    "monarch-8": ("model.algebra=monarch", "model.n=8"),
}


def main() -> None:
    """Measure and print."""
    given = options(__doc__, MODELS, sentences=128, length=16).parse_args()
    set_threads(given.threads)
    recipes = {name: translation("multi30k-de-en", (*WIDE, *MODELS[name])) for name in named(given.rows, MODELS)}
    rows = measure(recipes, 8000, given.sentences, given.length, given.rounds)
    shape = f"{given.sentences} sentences of {given.length} tokens, {given.rounds} rounds"
    sys.stdout.write(f"{processor()}, {torch.get_num_threads()} threads; {shape}\n\n")
    sys.stdout.write(
        "| model | parameters | training / dense | allowed | decoding / dense | allowed |\n|---|---|---|---|---|---|\n"
    )
    for row in rows:
        speeds = f"{row.training} | {row.training_allowed:.2f} | {row.decoding} | {row.decoding_allowed:.2f}"
        sys.stdout.write(f"| {row.model} | {row.parameters:,} | {speeds} |\n")


if __name__ == "__main__":
    main()
