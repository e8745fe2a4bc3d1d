"""Measure the GPU table of docs/performance.md, run the CUDA tests, and write everything as one JSON file.

::

    make gpu-check                                  # writes build/gpu-check.json, in at most nine minutes
    python tools/gpu_check.py --output FILE
    python tools/gpu_check.py --smoke               # tiny sizes, on any device: does the script run?

Every training step is the trainer's: bfloat16 autocast over float32 parameters, each H built once for a step. Models
read synthetic text whose lengths are those of image captions. Candidates take turns; a ratio is the median of the
rounds. Exit code 2 means that no CUDA device is available, exit code 1 that a test failed.
"""

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from phmctl.assembly import build_transformer
from phmctl.benchmarks.models import searcher, variants_of
from phmctl.benchmarks.ratios import Timing, compare, machine, parameters_of
from phmctl.data.batches import Batch
from phmctl.data.special import EOS
from phmctl.files import write_json
from phmctl.nn.convert import to_dense
from phmctl.nn.linear import PHMLinear
from phmctl.nn.lstm import PHMLSTM
from phmctl.nn.step import Leaves
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import TranslationRecipe
from phmctl.training.optimiser import build_autocast, build_optimiser, stepper

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/nn/test_cuda.py", "tests/training/test_cuda.py", "tests/decoding/test_cuda.py")


class Sizes(NamedTuple):
    """The sizes of the measurements."""

    shapes: Sequence[tuple[int, int]] = ((512, 512), (512, 2048), (1024, 4096), (4096, 4096))
    tokens: int = 4096  # rows of a layer's input
    hidden: int = 300  # of the LSTM
    sequences: int = 256
    rounds: int = 9
    steps: int = 500  # of each half of the comparison of first and later steps
    batches: int = 8
    sentences: int = 256
    vocabulary: int = 8000
    batch_tokens: int = 2048
    settings: Sequence[str] = ()  # of all recipes
    compiled: Sequence[bool] = (False, True)


SMOKE = Sizes(
    shapes=((16, 32),), tokens=8, hidden=8, sequences=2, rounds=1, steps=2, batches=1, sentences=2, vocabulary=200,
    batch_tokens=64, compiled=(False,),
    settings=("model.width=16", "model.feed_forward=16", "model.heads=2", "model.encoder_layers=1",
              "model.decoder_layers=1"),
)  # fmt: skip
IWSLT = ("model.width=512", "model.feed_forward=2048", "model.heads=8", "model.encoder_layers=6",
         "model.decoder_layers=6")  # fmt: skip


def recipe_of(name: str, sizes: Sizes, device: torch.device, *settings: str) -> TranslationRecipe:
    fixed = [
        f"training.device={device.type}",
        f"training.precision={'bfloat16' if device.type == 'cuda' else 'float32'}",
    ]
    return expect(load_recipe(name, [*settings, *sizes.settings, *fixed]), TranslationRecipe)


def synthetic_batches(count: int, tokens: int, vocabulary: int, device: torch.device) -> list[Batch]:
    """Return batches of at most `tokens` tokens a side, with lengths of 3 to 40 tokens, about 15 on average."""
    generator = torch.Generator().manual_seed(0)
    batches = []
    for _ in range(count):
        longest = torch.normal(15.0, 5.0, (2,), generator=generator).clamp(3, 40).int().tolist()
        rows = max(tokens // max(longest), 1)
        source, target = (torch.randint(4, vocabulary, (rows, width + 1), generator=generator) for width in longest)
        batches.append(Batch((source, target), rows * longest[1]).to(device))
    return batches


def text_loss(smoothing: float, model: nn.Module, batch: Batch) -> Tensor:
    loss: Tensor = model(batch.source, batch.target[:, :-1], batch.target[:, 1:], smoothing)[0]
    return loss / batch.target_tokens


def training_steps(
    recipe: TranslationRecipe, sizes: Sizes, batches: Sequence[Batch], device: torch.device, *, compiled: bool = False
) -> tuple[nn.Module, Callable[[], object]]:
    """Return a recipe's model, and a function that trains a step on each batch."""
    model = build_transformer(recipe.model, sizes.vocabulary, sizes.vocabulary, device)
    training = recipe.training.model_copy(update={"compile": compiled})
    loss = partial(text_loss, training.label_smoothing)
    return model, stepper(model, loss, training, batches, device)


# --------------------------------------------------------------------------------------------------- measurements


def first_steps(sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Compare the first steps of a training, whose shapes are new, with the same number of later ones."""
    recipe = recipe_of("multi30k-de-en", sizes, device, "model.algebra=phm", "model.n=4")
    batches = synthetic_batches(2 * sizes.steps, sizes.batch_tokens, sizes.vocabulary, device)
    iterator = iter(batches)
    batch: list[Batch] = []  # of the next step
    _, step = training_steps(recipe, sizes, batch, device)
    seconds = []
    for _ in range(2):
        began = time.perf_counter()
        for _ in range(sizes.steps):
            batch[:] = [next(iterator)]
            step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - began)
    return {"steps": sizes.steps, "seconds": seconds, "speed of the first": seconds[1] / seconds[0]}


def layers(sizes: Sizes, device: torch.device) -> list[dict[str, Any]]:
    """Time a forward and backward pass of a layer, H's build and pull-back included, against ``nn.Linear``."""
    rows = []
    for d, k in sizes.shapes:
        torch.manual_seed(0)
        modules: dict[str, nn.Module] = {
            "nn.Linear": nn.Linear(d, k),
            "A": PHMLinear(d, k, n=4),
            "rank 4": PHMLinear(d, k, n=4, rank=4, execution="rank"),
        }
        x = torch.randn(sizes.tokens, d)
        calls = {name: training_call(module.to(device), x.to(device)) for name, module in modules.items()}
        timings = compare(f"{d} → {k}", calls, rounds=sizes.rounds, device=device)
        for name, module in modules.items():
            exact = nn.functional.linear(x.double(), module.weight.detach().double().cpu(), module.bias.double().cpu())
            error = (calls[name]().cpu().double() - exact).norm() / exact.norm()
            rows.append({"in": d, "out": k, "stored as": name, **figures(timings[name]), "error": error.item()})
    return rows


def lstm(sizes: Sizes, device: torch.device) -> list[dict[str, Any]]:
    """Time a forward and backward pass of the LSTM against ``nn.LSTM``."""
    x = torch.randn(sizes.sequences, 40, sizes.hidden, device=device)
    modules = {
        "nn.LSTM": nn.LSTM(sizes.hidden, sizes.hidden, batch_first=True),
        "A": PHMLSTM(sizes.hidden, sizes.hidden, n=4),
    }
    calls = {name: training_call(module.to(device), x) for name, module in modules.items()}
    timings = compare("LSTM", calls, rounds=sizes.rounds, device=device)
    return [{"stored as": name, **figures(timing)} for name, timing in timings.items()]


def training(sizes: Sizes, device: torch.device) -> list[dict[str, Any]]:
    """Time whole training steps of two recipes against their dense twins, eager and compiled."""
    rows = []
    for name, settings in (("multi30k-de-en", ("model.algebra=phm", "model.n=4")), ("multi30k-de-en-fast", ())):
        recipe = recipe_of(name, sizes, device, *settings)
        for compiled in sizes.compiled:
            rows += timed_training(name, recipe, sizes, sizes.batch_tokens, device, compiled=compiled)
    return rows


def iwslt_sized(sizes: Sizes, device: torch.device) -> list[dict[str, Any]]:
    """Time training steps of a model for IWSLT, dense and with n = 4, and measure the peak memory."""
    sizes = sizes._replace(settings=sizes.settings or IWSLT)
    recipe = recipe_of("multi30k-de-en", sizes, device, "model.algebra=phm", "model.n=4")
    return timed_training("IWSLT-sized", recipe, sizes, 2 * sizes.batch_tokens, device)


def timed_training(
    name: str, recipe: TranslationRecipe, sizes: Sizes, tokens: int, device: torch.device, *, compiled: bool = False
) -> list[dict[str, Any]]:
    batches = synthetic_batches(sizes.batches, tokens, sizes.vocabulary, device)
    models, calls, peaks = {}, {}, {}
    for variant, variant_recipe in variants_of(recipe).items():
        models[variant], calls[variant] = training_steps(variant_recipe, sizes, batches, device, compiled=compiled)
        calls[variant]()
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated() if device.type == "cuda" else 0
        calls[variant]()
        peaks[variant] = torch.cuda.max_memory_allocated() - before if device.type == "cuda" else None
    timings = compare(name, calls, rounds=sizes.rounds, device=device)
    target_tokens = sum(batch.target_tokens for batch in batches)
    return [
        {
            "recipe": name,
            "model": variant,
            "compiled": compiled,
            "parameters": parameters_of(models[variant]),
            "target_tokens_per_second": target_tokens / timing.seconds.median,
            "speed": asdict(timing.ratio.inverse),
            "peak_bytes_of_a_step": peaks[variant],
        }
        for variant, timing in timings.items()
    ]


def decoding(sizes: Sizes, device: torch.device) -> list[dict[str, Any]]:
    """Time beam search of a PHM model's dense copy and of its dense twin."""
    recipe = recipe_of("multi30k-de-en", sizes, device, "model.algebra=phm", "model.n=4")
    sources = [[*torch.randint(4, sizes.vocabulary, (5 + row % 20,)).tolist(), EOS] for row in range(sizes.sentences)]
    lengths = [len(source) for source in sources]
    searches = {}
    for name, variant in variants_of(recipe).items():
        model: Any = to_dense(build_transformer(variant.model, sizes.vocabulary, sizes.vocabulary, device).eval())
        searches[name] = searcher(model, sources, lengths, recipe, sizes.vocabulary)
    timings = compare("beam search", searches, rounds=min(sizes.rounds, 5), device=device)
    return [
        {
            "model": name,
            "sentences_per_second": sizes.sentences / timing.seconds.median,
            "speed": asdict(timing.ratio.inverse),
        }
        for name, timing in timings.items()
    ]


def launches(sizes: Sizes, device: torch.device) -> list[dict[str, Any]]:
    """Count the kernels and copies of one training step (on a CPU: all operations), dense and with n = 4."""
    recipe = recipe_of("multi30k-de-en", sizes, device, "model.algebra=phm", "model.n=4")
    batches = synthetic_batches(1, 64, sizes.vocabulary, device)
    rows = []
    for micro_batches in (1, 4):
        for name, variant in variants_of(recipe).items():
            model = build_transformer(variant.model, sizes.vocabulary, sizes.vocabulary, device)
            step = accumulated_step(model, variant, batches * micro_batches, device)
            step()
            activity = ProfilerActivity.CUDA if device.type == "cuda" else ProfilerActivity.CPU
            with profile(activities=[activity]) as profiler:
                step()
                if device.type == "cuda":
                    torch.cuda.synchronize()
            rows.append({"model": name, "micro_batches": micro_batches, "launches": len(profiler.events())})
    return rows


def accumulated_step(
    model: nn.Module, recipe: TranslationRecipe, batches: Sequence[Batch], device: torch.device
) -> Callable[[], None]:
    """Return a function that makes one optimiser step of several micro-batches, as the trainer does."""
    optimiser = build_optimiser(model, recipe.training)
    autocast = build_autocast(device, recipe.training.precision)
    leaves = Leaves(model)

    def step() -> None:
        with leaves.active(passes=len(batches)):
            for batch in batches:
                with autocast():
                    loss = text_loss(recipe.training.label_smoothing, model, batch)
                loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), recipe.training.clip)
        optimiser.step()
        optimiser.zero_grad(set_to_none=True)

    return step


def training_call(module: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """Return a function that runs a forward and a backward pass in a step of its own, and returns the output."""
    leaf, leaves = x.clone().requires_grad_(), Leaves(module)

    def call() -> Tensor:
        module.zero_grad(set_to_none=True)
        leaf.grad = None
        with leaves.active():
            with torch.autocast(x.device.type, torch.bfloat16):
                output = module(leaf)
            y: Tensor = output[0] if isinstance(output, tuple) else output
            y.backward(torch.ones_like(y))
        return y.detach()

    return call


def figures(timing: Timing) -> dict[str, Any]:
    return {"seconds": asdict(timing.seconds), "ratio": asdict(timing.ratio)}


SECTIONS = (first_steps, layers, lstm, training, decoding, launches, iwslt_sized)


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
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any device, without the tests")
    parser.add_argument("--minutes", type=float, default=9.0, help="no measurement begins after this time")
    options = parser.parse_args()
    if not options.smoke and not torch.cuda.is_available():
        sys.stderr.write("gpu-check needs a CUDA device; `phmctl bench` measures this processor\n")
        return 2
    began = time.monotonic()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    sizes = SMOKE if options.smoke else Sizes()
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=False, cwd=ROOT, capture_output=True, text=True)
    document: dict[str, Any] = {"commit": commit.stdout.strip(), "date": time.strftime("%Y-%m-%d"), **machine(device)}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for measure in SECTIONS:
        late = time.monotonic() - began > 60 * options.minutes
        document[measure.__name__] = "not measured: no time was left" if late else measure(sizes, device)
        document["seconds"] = time.monotonic() - began
        write_json(options.output, document)  # keeps these measurements if a later one fails
    if options.smoke:
        return 0
    document["tests"] = run_tests()
    write_json(options.output, document)
    return 1 if document["tests"]["status"] else 0


if __name__ == "__main__":
    sys.exit(main())
