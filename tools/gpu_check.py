"""Run the CUDA tests and benchmarks (layers, LSTM, training, decoding) and write the results as JSON.

::

    make gpu-check                                            # writes build/gpu-check.json
    python tools/gpu_check.py --output gpu-check.json

Layers are compared with ``nn.Linear``, eager and compiled, in bfloat16 and float32; models are compared with their
dense twin and ``nn.Transformer``. Exit code 2 means that no CUDA device is available. Exit code 1 means that a test
failed; the measurements are written nevertheless.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from phmctl.benchmarks.layers import bench_layer, bench_lstm
from phmctl.benchmarks.models import bench_decoding, bench_training
from phmctl.files import write_json
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import TranslationRecipe

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/nn/test_cuda.py", "tests/training/test_cuda.py", "tests/decoding/test_cuda.py")
SHAPES = ((512, 512), (512, 2048), (1024, 4096), (4096, 4096))
TOKENS = (64, 4096)
RULES = {"A": {}, "factors of rank 4": {"rank": 4}}
SETTINGS = {"A": [], "factors of rank 4": ["model.parametrization=factors", "model.rank=4"]}
PRECISIONS = ("bfloat16", "float32")
RECIPE = "miniature"  # its data is shipped with the package


def bench_layers(
    device: str,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    tokens: Sequence[int] = TOKENS,
    compiled: Sequence[bool] = (False, True),
    rounds: int = 10,
) -> list[dict[str, Any]]:
    """Time layers with n = 4 for all shapes, dtypes, rules and executions, eager and compiled, and the LSTM."""
    results = []
    for (d, k), dtype, compiles, rule in itertools.product(shapes, PRECISIONS, compiled, RULES):
        options = {"dtype": dtype, "compiled": compiles, **RULES[rule]}
        results.append(bench_layer(d, k, [4], tokens, device=device, rounds=rounds, **options))
    results.append(bench_lstm(orders=[4], device=device, rounds=rounds))
    return [result.as_json() for result in results]


def bench_models(device: str) -> dict[str, Any]:
    """Time training steps (for each precision and rule) and beam search of a small model."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare = [sys.executable, "-m", "phmctl", "prepare-data", RECIPE, "--data", folder]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        for precision, rule in itertools.product(PRECISIONS, SETTINGS):
            model = ["model.algebra=phm", "model.n=4", "model.width=512", *SETTINGS[rule]]
            training = [f"training.device={device}", f"training.precision={precision}"]
            recipe = expect(load_recipe(RECIPE, [*training, *model]), TranslationRecipe)
            figures[f"training, {precision}, {rule}"] = bench_training(recipe, Path(folder)).as_json()
        figures["decoding"] = bench_decoding(recipe, Path(folder)).as_json()
    return figures


def run_tests() -> dict[str, Any]:
    """Run the CUDA tests, and return pytest's exit status and last line."""
    command = [sys.executable, "-m", "pytest", "-q", *TESTS]
    process = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if process.returncode:
        sys.stderr.write(process.stdout[-4000:])
    lines = process.stdout.strip().splitlines()
    return {"status": process.returncode, "summary": lines[-1] if lines else ""}


def main() -> int:
    """Write the measurements, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/gpu-check.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("gpu-check needs a CUDA device; `phmctl bench` measures this processor\n")
        return 2
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=False, cwd=ROOT, capture_output=True, text=True)
    document: dict[str, Any] = {"commit": commit.stdout.strip(), "tests": run_tests()}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for name, measure in (("layers", bench_layers), ("models", bench_models)):
        document[name] = measure("cuda")
        write_json(options.output, document)  # keeps these measurements if a later one fails
    return 1 if document["tests"]["status"] else 0


if __name__ == "__main__":
    sys.exit(main())
