"""Measure the exports of a run to onnx and safetensors: bytes, opening time, the encoder's time and its outputs.

python tools/export_sizes.py RUN
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import torch

from phmctl.answering.beam import pad
from phmctl.answering.onnx import ENCODER, OnnxTransformer, session
from phmctl.answering.opening import ONNX, SAFETENSORS
from phmctl.benchmarks import time_in_turns
from phmctl.console import Table, emit
from phmctl.data import EOS
from phmctl.export.verb import export
from phmctl.runs import Run
from phmctl.runs.copies import load_tokenizers, read_text

OPENINGS = 9
ROUNDS = 200  # of the encoders in turn; a busy machine needs as many
FORMS = [("dense", "float32"), *(("phm", form) for form in ("float32", "float16", "int8", "int4"))]
COLUMNS = ["weights", "numbers", "onnx MB", "opening s", "encoder / dense", "difference", "safetensors MB", "BLEU"]


def main() -> None:
    """Print a table with a row for each form."""
    run = Run.open(sys.argv[1])
    lines = read_text(run, "test", "source")[:32]
    source = pad([[*ids, EOS] for ids in load_tokenizers(run).source.encode(lines)]).numpy()
    sizes, openings, encoders, scores = {}, {}, {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for form in FORMS:
            weights, quantize = form
            for to in (ONNX, SAFETENSORS):
                output = Path(folder) / f"{to}-{weights}-{quantize}"
                made = export(run, to, output, weights=weights, quantize=quantize)
                sizes[form, to] = made.export.manifest["bytes"]["weights"] / 1e6
                scores[form] = made.export.manifest["verification"]["scores"]["export"]
            graphs = Path(folder) / f"{ONNX}-{weights}-{quantize}"
            openings[form] = partial(OnnxTransformer, graphs, threads=1)
            encoders[form] = partial(session(graphs / ENCODER, threads=1).run, None, {"source": source})
        opened = time_in_turns("the opening", openings, rounds=OPENINGS)
        encoded = time_in_turns("the encoder", encoders, rounds=ROUNDS)
    outputs = {form: torch.from_numpy(encode()[0]) for form, encode in encoders.items()}
    rows = []
    for form in FORMS:
        difference = (outputs[form] - outputs[FORMS[0]]).abs().max().item()
        numbers = [sizes[form, ONNX], opened[form].seconds.median, encoded[form].ratio.median, difference]
        rows.append(
            [*form, *(f"{number:.3g}" for number in [*numbers, sizes[form, SAFETENSORS]]), f"{scores[form]:.2f}"]
        )
    emit(Table(run.name, COLUMNS, rows, text=[1]).drawn())


if __name__ == "__main__":
    main()
