"""Compositions of layers and heads against the model without: training and decoding, as a table in markdown.

The models of Li et al. 2020, Table 1 (d = 512, 6+6 layers, a vocabulary of 32,000), and compositions of PHM maps::

    python tools/composition_speed.py --threads 2 --output compositions.json
    python tools/composition_speed.py --rows base,both --cpu-time   # on a machine where others are at work: one thread
"""

import argparse
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from phmctl.accounting.multiplications import multiplications
from phmctl.assembly import build_transformer
from phmctl.backends.machine import processor
from phmctl.benchmarks import timing
from phmctl.benchmarks.decoding import Workload, searcher
from phmctl.benchmarks.timing import Spread, compare, watched
from phmctl.devices import set_threads
from phmctl.files import write_json
from phmctl.models.transformer import Transformer
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import TranslationRecipe
from phmctl.training.optimiser import build_optimiser

VOCABULARY = 32_000
PHM = ("model.algebra=phm", "model.n=4", "model.parametrization=factors")
LAYERS, HEADS = "model.compose_layers", "model.compose_heads"
BASE = (f"{LAYERS}=none", f"{HEADS}=none")
MODELS: dict[str, tuple[str, tuple[str, ...], str]] = {  # what it is, settings of ni-wmt14-en-de, published speeds
    "base": ("row 1: without compositions", BASE, "1 / 1"),
    "linear": ("row 2: linear over layers", (f"{LAYERS}=linear", f"{HEADS}=none"), ""),
    "hierarchical-layers": ("row 3: hierarchical over layers", (f"{LAYERS}=hierarchical", f"{HEADS}=none"), ""),
    "hierarchical-heads": ("row 4: hierarchical over heads", (f"{LAYERS}=none", f"{HEADS}=hierarchical"), ""),
    "layers": ("row 6: bilinear over layers", (f"{HEADS}=none",), ""),
    "heads": ("row 7: bilinear over heads", (f"{LAYERS}=none",), ""),
    "both": ("row 8: both", (), "0.93 / 0.93"),
    "phm-base": ("PHM n = 4, without compositions", (*PHM, *BASE), ""),
    "phm-both": ("PHM n = 4, both", PHM, ""),
}
TARGETS = {"linear": 0.93, "phm-both": 0.88}  # of base's speed; others: within 5 % of what products allow


@dataclass(frozen=True)
class Row:
    """A model's speed relative to base's.

    Attributes:
        model: its name here.
        parameters: how many.
        training, decoding: measured.
        training_allowed, decoding_allowed: by multiplications alone.
    """

    model: str
    parameters: int
    training: Spread
    training_allowed: float
    decoding: Spread
    decoding_allowed: float


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default=",".join(MODELS), help=f"some of {', '.join(MODELS)}; base is always there")
    parser.add_argument("--sentences", type=int, default=32, help="of a training batch, and of those that are decoded")
    parser.add_argument("--length", type=int, default=32, help="tokens of each, on either side")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure processor time: for a busy machine, one thread"
    )
    parser.add_argument("--output", type=Path, help="write all figures here too, as JSON")
    given = parser.parse_args()
    if given.cpu_time:
        timing.clock_of = lambda device: time.process_time
    set_threads(1 if given.cpu_time else given.threads)
    names = ["base", *(name for name in given.rows.split(",") if name != "base")]
    recipes = {name: recipe_of("ni-wmt14-en-de", MODELS[name][1]) for name in names}
    rows = measure(recipes, VOCABULARY, given.sentences, given.length, given.rounds)
    if given.output:
        write_json(given.output, [asdict(row) for row in rows])
    clock = "processor time" if given.cpu_time else "wall time"
    shape = f"{given.sentences} sentences of {given.length} tokens, {given.rounds} rounds"
    sys.stdout.write(f"{processor()}, {torch.get_num_threads()} threads, {clock}; {shape}\n\n{as_markdown(rows)}")


def measure(
    recipes: Mapping[str, TranslationRecipe], vocabulary: int, sentences: int, length: int, rounds: int
) -> list[Row]:
    """Return the rows of some models, the first of which is `base`."""
    torch.manual_seed(1)
    models = {name: build_transformer(each.model, vocabulary, vocabulary) for name, each in recipes.items()}
    ids = torch.randint(4, vocabulary, (sentences, length))  # (B, T)
    work = Workload(ids.tolist(), [length] * sentences)
    training = {name: trainer(models[name], recipes[name], ids) for name in recipes}
    trained = _compared("training steps", training, rounds)
    decoding = {name: searcher(models[name].eval(), work, recipes[name], vocabulary) for name in recipes}
    decoded = _compared("searches", decoding, rounds)
    return [
        Row(name, sum(each.numel() for each in models[name].parameters()), *trained[name], *decoded[name])
        for name in recipes
    ]


def recipe_of(name: str, settings: Sequence[str]) -> TranslationRecipe:
    """Return a translation recipe with some settings."""
    recipe = load_recipe(name, settings)
    if not isinstance(recipe, TranslationRecipe):
        raise TypeError(recipe)
    return recipe


def trainer(model: Transformer, recipe: TranslationRecipe, ids: Tensor) -> Callable[[], None]:
    """Return a training step on one batch."""
    optimiser = build_optimiser(model, recipe.training)

    def step() -> None:
        model.train()
        loss, _ = model(ids, ids, ids, recipe.training.label_smoothing)
        (loss / ids.numel()).backward()
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def _compared(what: str, calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[Spread, float]]:
    """Return the measured speeds relative to base's, and those that multiplications allow."""
    with watched(what, len(calls), rounds) as advance:
        timings = compare(calls, rounds=rounds, baseline="base", warmup=1, advance=advance)
    products = {name: multiplications(call) for name, call in calls.items()}
    return {name: (timings[name].ratio.inverse, products["base"] / products[name]) for name in calls}


def as_markdown(rows: Sequence[Row]) -> str:
    """Return the table; what misses its target is bold."""
    head = "| model | parameters | training / base | products allow | decoding / base | products allow | published |\n"
    return head + "|---|---|---|---|---|---|---|\n" + "".join(map(_line, rows))


def _line(row: Row) -> str:
    words, _, published = MODELS[row.model]
    cells = [words, f"{row.parameters:,}"]
    for speed, allowed in ((row.training, row.training_allowed), (row.decoding, row.decoding_allowed)):
        asked = TARGETS.get(row.model, 0.95 * allowed)
        cells += [f"{speed}" if speed.median >= asked else f"**{speed}**", f"{allowed:.2f}"]
    return f"| {' | '.join([*cells, published or '–'])} |\n"


if __name__ == "__main__":
    main()
