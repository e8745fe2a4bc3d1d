"""Everything that only a GPU can tell, in one go: CUDA's tests, the layer, the LSTM, training and decoding, as JSON.

::

    make gpu-check                                            # writes build/gpu-check.json
    python tools/gpu_check.py --output gpu-check.json

Layers are measured eager and compiled, in bfloat16 and float32, against ``nn.Linear`` treated likewise; the model
against its dense twin and ``nn.Transformer``. Exit code 2: there is no CUDA device; 1: a test failed, and the figures
are there all the same.
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
SHAPES, TOKENS = ((512, 512), (512, 2048), (1024, 4096), (4096, 4096)), (64, 4096)
RULES = {"A": {}, "factors of rank 4": {"rank": 4}}
SETTINGS = {"A": [], "factors of rank 4": ["model.parametrization=factors", "model.rank=4"]}
PRECISIONS = ("bfloat16", "float32")
RECIPE = "miniature"  # its data is there on any machine


def bench_layers(
    device: str,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    tokens: Sequence[int] = TOKENS,
    compiled: Sequence[bool] = (False, True),
    rounds: int = 10,
) -> list[dict[str, Any]]:
    """Measure layers of n = 4 over shapes, dtypes, rules and executions, eager and compiled; and the LSTM."""
    measured = [
        bench_layer(d, k, [4], tokens, dtype=dtype, device=device, rounds=rounds, compiled=compiles, **RULES[rule])
        for (d, k), dtype, compiles, rule in itertools.product(shapes, PRECISIONS, compiled, RULES)
    ]
    return [bench.as_json() for bench in [*measured, bench_lstm(orders=[4], device=device, rounds=rounds)]]


def bench_models(device: str) -> dict[str, Any]:
    """Measure a training step and the beam search of a small model, by either precision and rule."""
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare = [sys.executable, "-m", "phmctl", "prepare-data", RECIPE, "--data", folder]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        for precision, rule in itertools.product(PRECISIONS, SETTINGS):
            sets = [f"training.device={device}", f"training.precision={precision}", "model.algebra=phm", "model.n=4"]
            recipe = expect(load_recipe(RECIPE, [*sets, "model.width=512", *SETTINGS[rule]]), TranslationRecipe)
            figures[f"training, {precision}, {rule}"] = bench_training(recipe, Path(folder)).as_json()
        figures["decoding"] = bench_decoding(recipe, Path(folder)).as_json()
    return figures


def run_tests() -> dict[str, Any]:
    """Run CUDA's tests; return pytest's exit status and its last line."""
    command = [sys.executable, "-m", "pytest", "-q", *TESTS]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    sys.stderr.write(done.stdout[-4000:] if done.returncode else "")
    return {"status": done.returncode, "says": (done.stdout.strip().splitlines() or [""])[-1]}


def main() -> int:
    """Measure and write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/gpu-check.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA device: gpu-check measures nothing else; `phmctl bench` measures this processor\n")
        return 2
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=False, cwd=ROOT, capture_output=True, text=True)
    document: dict[str, Any] = {"commit": commit.stdout.strip(), "tests": run_tests()}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for name, measure in (("layers", bench_layers), ("models", bench_models)):
        document[name] = measure("cuda")
        write_json(options.output, document)  # what is measured is kept, whatever comes after it
    return 1 if document["tests"]["status"] else 0


if __name__ == "__main__":
    sys.exit(main())
