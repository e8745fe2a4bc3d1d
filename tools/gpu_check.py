"""Everything that only a GPU can tell, in one go: CUDA's tests, the layer, training and decoding; one JSON document.

::

    make gpu-check                                            # writes build/gpu-check.json
    python tools/gpu_check.py --output gpu-check.json

Layers are measured eager and compiled, in bfloat16 and float32, against ``nn.Linear`` treated likewise; the model
against its dense twin. Exit code 2: there is no CUDA device; 1: a test failed, and the figures are there all the same.
"""

import argparse
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from phmctl.assembly import build_transformer
from phmctl.backends.choices import as_text, taken_from
from phmctl.benchmarks.calls import eval_call, training_call
from phmctl.benchmarks.decoding import bench_decoding
from phmctl.benchmarks.timing import compare
from phmctl.benchmarks.training import bench_training
from phmctl.decoding.torch_engine import TorchEngine
from phmctl.files import write_json
from phmctl.nn.caching import cached
from phmctl.nn.linear import PARAMETRIZATIONS, PHMLinear
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import DecodingSection, TranslationRecipe

ROOT = Path(__file__).resolve().parents[1]
PLACES = ("algebra/test_triton.py", "nn/test_cuda.py", "training/test_cuda.py", "decoding/test_cuda.py")
TESTS = tuple(f"tests/{place}" for place in PLACES)
SHAPES, ORDERS, TOKENS = ((512, 512), (512, 2048), (1024, 4096), (4096, 4096)), (4, 8), (64, 4096)
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}
MODES: dict[str, Callable[..., Callable[[], object]]] = {"forward+backward": training_call, "eval": eval_call}
VOCABULARY = 8000
RECIPE = "miniature"  # what there is data for on any machine


def bench_layers(
    device: str,
    *,
    shapes: Sequence[tuple[int, int]] = SHAPES,
    orders: Sequence[int] = ORDERS,
    tokens: Sequence[int] = TOKENS,
    compiled: Sequence[bool] = (False, True),
    rounds: int = 10,
) -> list[dict[str, Any]]:
    """Measure layers over shapes, n, tokens, dtypes, parametrizations and modes; a row each, plain values."""
    rows = []
    for (d, k), n, dtype, compiles in itertools.product(shapes, orders, DTYPES, compiled):
        factory: dict[str, Any] = {"device": device, "dtype": DTYPES[dtype]}
        layers: dict[str, nn.Module] = {"nn.Linear": nn.Linear(d, k, **factory)}
        layers |= {name: PHMLinear(d, k, n=n, parametrization=name, **factory) for name in PARAMETRIZATIONS}
        applied = {name: torch.compile(layer) if compiles else layer for name, layer in layers.items()}
        for count, mode in itertools.product(tokens, MODES):
            x = torch.randn(count, d, **factory)
            with taken_from({}) as choices, cached():
                calls = {name: MODES[mode](layers[name], applied[name], x) for name in layers}
                timings = compare(calls, rounds=rounds, device=device)
            cell = {"d": d, "k": k, "n": n, "tokens": count, "mode": mode, "dtype": dtype, "compiled": compiles}
            found = {name: timing.as_json() for name, timing in timings.items()}
            rows.append(cell | {"timings": found, "choices": as_text(choices)})
    return rows


def bench_models(device: str) -> dict[str, Any]:
    """Measure a training step and the beam search of a small model against its dense twin, by either precision."""
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        prepare = [sys.executable, "-m", "phmctl", "prepare-data", RECIPE, "--data", folder]
        subprocess.run(prepare, check=True, stdout=subprocess.DEVNULL)
        for precision, parametrization in itertools.product(DTYPES, PARAMETRIZATIONS):
            sets = [f"training.device={device}", f"training.precision={precision}", "model.algebra=phm", "model.n=4"]
            recipe = load_recipe(RECIPE, [*sets, f"model.parametrization={parametrization}", "model.width=512"])
            cell = {"training": bench_training(recipe, Path(folder)).as_json()}
            if precision == "float32":
                search = expect(recipe, TranslationRecipe)
                cell["decoding"] = bench_decoding(search, Path(folder), uncached=0).as_json()
            found[f"{precision} {parametrization}"] = cell
    return found


def bench_steps(device: str, *, sentences: Sequence[int] = (1, 32), rounds: int = 10) -> list[dict[str, Any]]:
    """Measure the search of batches with steps that are recorded and replayed, against steps as they stand."""
    recipe = load_recipe(RECIPE, ["model.algebra=phm", "model.n=4", "model.width=512"])
    model = build_transformer(expect(recipe, TranslationRecipe).model, VOCABULARY, VOCABULARY, device).eval()
    engines = {name: TorchEngine(model, torch.device(device)) for name in ("eager", "graphs")}
    engines["graphs"].graphed = True
    settings, rows = DecodingSection(beam=4, max_extra=20, max_ratio=1.0), []
    for count in sentences:
        sources = torch.randint(4, VOCABULARY, (count, 24), generator=torch.Generator().manual_seed(count)).tolist()

        def searching(engine: TorchEngine, batch: list[list[int]] = sources) -> Callable[[], object]:
            return lambda: engine.search(batch, settings, allowed=VOCABULARY)

        with cached():
            calls = {name: searching(engine) for name, engine in engines.items()}
            timings = compare(calls, rounds=rounds, warmup=2, device=device)
        rows.append({"sentences": count, "timings": {name: timing.as_json() for name, timing in timings.items()}})
    return rows


def run_tests() -> dict[str, Any]:
    """Run CUDA's tests; return pytest's exit status and its last line."""
    command = [sys.executable, "-m", "pytest", "-q", *TESTS]
    done = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    sys.stderr.write(done.stdout[-4000:] if done.returncode else "")
    return {"status": done.returncode, "says": (done.stdout.strip().splitlines() or [""])[-1]}


def main() -> int:
    """Measure and write; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("build/gpu-check.json"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.stderr.write("no CUDA device: gpu-check measures nothing else; `phmctl bench` measures this processor\n")
        return 2
    device = torch.cuda.get_device_name()
    asked = subprocess.run(["git", "rev-parse", "HEAD"], check=False, cwd=ROOT, capture_output=True, text=True)
    commit = asked.stdout.strip()
    document: dict[str, Any] = {"device": device, "torch": torch.__version__, "commit": commit, "tests": run_tests()}
    for name, measured in {"layers": bench_layers, "models": bench_models, "steps": bench_steps}.items():
        document[name] = measured("cuda")
        options.output.parent.mkdir(parents=True, exist_ok=True)
        write_json(options.output, document)  # what is measured is kept, whatever comes after it
    return 1 if document["tests"]["status"] else 0


if __name__ == "__main__":
    sys.exit(main())
