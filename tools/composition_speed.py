"""Compositions of layers and heads against the model without: training and decoding, as a table in markdown.

The models of Li et al. 2020, Table 1 (d = 512, 6+6 layers, a vocabulary of 32,000), and compositions of PHM maps::

    python tools/composition_speed.py --threads 2 --output compositions.json
    python tools/composition_speed.py --rows base,both --cpu-time   # on a machine where others are at work: one thread
"""

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from phmctl.backends.machine import processor
from phmctl.benchmarks import timing
from phmctl.benchmarks.models import ModelRow, measure, named, options, translation
from phmctl.devices import set_threads
from phmctl.files import write_json

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


def main() -> None:
    """Measure and print."""
    parser = options(__doc__, MODELS, sentences=32, length=32)
    parser.add_argument(
        "--cpu-time", action="store_true", help="measure processor time: for a busy machine, one thread"
    )
    parser.add_argument("--output", type=Path, help="write all figures here too, as JSON")
    given = parser.parse_args()
    if given.cpu_time:
        timing.clock_of = lambda device: time.process_time
    set_threads(1 if given.cpu_time else given.threads)
    recipes = {name: translation("ni-wmt14-en-de", MODELS[name][1]) for name in named(given.rows, MODELS)}
    rows = measure(recipes, VOCABULARY, given.sentences, given.length, given.rounds)
    if given.output:
        write_json(given.output, [asdict(row) for row in rows])
    clock = "processor time" if given.cpu_time else "wall time"
    shape = f"{given.sentences} sentences of {given.length} tokens, {given.rounds} rounds"
    sys.stdout.write(f"{processor()}, {torch.get_num_threads()} threads, {clock}; {shape}\n\n{as_markdown(rows)}")


def as_markdown(rows: Sequence[ModelRow]) -> str:
    """Return the table; what misses its target is bold."""
    head = "| model | parameters | training / base | products allow | decoding / base | products allow | published |\n"
    return head + "|---|---|---|---|---|---|---|\n" + "".join(map(_line, rows))


def _line(row: ModelRow) -> str:
    words, _, published = MODELS[row.model]
    cells = [words, f"{row.parameters:,}"]
    for speed, allowed in ((row.training, row.training_allowed), (row.decoding, row.decoding_allowed)):
        asked = TARGETS.get(row.model, 0.95 * allowed)
        cells += [f"{speed}" if speed.median >= asked else f"**{speed}**", f"{allowed:.2f}"]
    return f"| {' | '.join([*cells, published or '–'])} |\n"


if __name__ == "__main__":
    main()
