"""Measure the exports of a run to onnx and safetensors: bytes, opening time, the encoder's time and its outputs.

python tools/export_sizes.py RUN
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

from phmctl.data.copies import load_tokenizers, read_text
from phmctl.data.special import EOS
from phmctl.decoding.beam import pad
from phmctl.decoding.onnx_engine import ENCODER, session
from phmctl.export.verb import export
from phmctl.exports import ONNX, SAFETENSORS
from phmctl.runs import Run

OPENINGS = 9
ROUNDS = 200  # of the encoders in turn; a busy machine needs as many
FORMS = [("dense", "float32"), *(("phm", form) for form in ("float32", "float16", "int8", "int4"))]


def main() -> None:
    """Print two tables: of ``onnx`` and of ``safetensors``."""
    parser = argparse.ArgumentParser(description="Measure the exports of a run.")
    parser.add_argument("run")
    run = Run.open(parser.parse_args().run)
    with tempfile.TemporaryDirectory() as folder:
        graphs: dict[str, tuple[Any, float, int]] = {}
        for weights, form in FORMS:
            output = Path(folder) / f"{weights}-{form}"
            made = export(run, ONNX, output, weights=weights, quantize=form, texts=32)
            seconds = []
            for _ in range(OPENINGS):
                began = time.perf_counter()
                opened = session(output / ENCODER, threads=1)
                session(output / "decoder.onnx", threads=1)
                seconds.append(time.perf_counter() - began)
            graphs[f"{weights}, {form}"] = opened, median(seconds), made.export.manifest["bytes"]["weights"]
        lines = read_text(run, "test", "source")[:32]
        source = pad([[*ids, EOS] for ids in load_tokenizers(run).source.encode(lines)]).numpy()
        times: dict[str, list[float]] = {name: [] for name in graphs}
        outputs = {}
        for _ in range(ROUNDS):
            for name, (opened, _, _) in graphs.items():
                began = time.perf_counter()
                outputs[name] = torch.from_numpy(opened.run(None, {"source": source})[0])
                times[name].append(time.perf_counter() - began)
        first = next(iter(graphs))
        lines_out = ["onnx: MB, opening s, encoder's time / dense, largest difference"]
        for name, (_, seconds_to_open, size) in graphs.items():
            ratio = median(time_ / dense for time_, dense in zip(times[name], times[first], strict=True))
            difference = (outputs[name] - outputs[first]).abs().max().item()
            lines_out.append(f"{name}: {size / 1e6:.2f}, {seconds_to_open:.3f}, {ratio:.2f}, {difference:.1e}")
        lines_out.append("safetensors: MB")
        for weights, form in FORMS:
            made = export(run, SAFETENSORS, Path(folder) / f"s-{weights}-{form}", weights=weights, quantize=form)
            scores = made.verification.scores or {}
            size = made.export.manifest["bytes"]["weights"]
            lines_out.append(
                f"{weights}, {form}: {size / 1e6:.2f}, BLEU {scores['torch']:.2f} -> {scores['export']:.2f}"
            )
        sys.stdout.write("\n".join(lines_out) + "\n")


if __name__ == "__main__":
    main()
