"""Measure the GPU table of docs/performance.md, run the CUDA tests, and write everything as one JSON file.

::

    make gpu-check                                  # writes build/gpu-check.json, in at most nine minutes
    python tools/gpu_check.py --output FILE
    python tools/gpu_check.py --smoke               # tiny sizes, on any device: does the script run?

Every training step is the trainer's: bfloat16 autocast over float32 parameters, each H built once for a step. Models
read synthetic text whose lengths are those of image captions. Candidates take turns; a ratio is the median of the
rounds. After `--minutes` the run stops, and the other entries are "not measured". Exit code 2 means that no CUDA device
is available, exit code 1 that a test failed.
"""

import argparse
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor, nn

from phmctl.benchmarks import (
    Timing,
    machine,
    parameters_of,
    stepper,
    time_in_turns,
    variants_of,
    wait,
)
from phmctl.data.batches import Batch
from phmctl.devices import has_bfloat16
from phmctl.models.transformer import Transformer
from phmctl.nn.convert import to_dense
from phmctl.nn.linear import PHMLinear
from phmctl.nn.lstm import PHMLSTM
from phmctl.nn.step import Leaves
from phmctl.recipe.loading import expect, load_recipe
from phmctl.recipe.schema import TranslationRecipe
from phmctl.storage import write_json

ROOT = Path(__file__).resolve().parents[1]
TESTS = ("tests/nn/test_cuda.py", "tests/training/test_cuda.py", "tests/answering/test_cuda.py")


class Sizes(NamedTuple):
    """The sizes of the measurements."""

    shapes: Sequence[tuple[int, int]] = ((512, 512), (512, 2048), (1024, 4096), (4096, 4096))
    maps: Sequence[int] = (1, 6)  # of one shape in a step
    tokens: int = 4096  # rows of a layer's input
    hidden: int = 300  # of the LSTM
    sequences: int = 256
    rounds: int = 9
    steps: int = 500  # of each half of the comparison of first and later steps
    batches: int = 8
    vocabulary: int = 8000
    batch_tokens: int = 2048
    settings: Sequence[str] = ()  # of all recipes
    compiles: bool = True  # whether `training.compile` is measured


SMOKE = Sizes(
    shapes=((16, 32),), maps=(1, 2), tokens=8, hidden=8, sequences=2, rounds=1, steps=2, batches=1,
    vocabulary=200, batch_tokens=64, compiles=False,
    settings=("model.width=16", "model.feed_forward=16", "model.heads=2", "model.encoder_layers=1",
              "model.decoder_layers=1"),
)  # fmt: skip
PLAIN = ("multi30k-de-en", "model.algebra=phm", "model.n=4")
FAST = ("multi30k-de-en-fast",)
IWSLT = ("model.width=512", "model.feed_forward=2048", "model.heads=8", "model.encoder_layers=6",
         "model.decoder_layers=6")  # fmt: skip


def recipe_of(name: str, sizes: Sizes, device: torch.device, *settings: str) -> TranslationRecipe:
    fixed = [
        f"training.device={device.type}",
        f"training.precision={'bfloat16' if device.type == 'cuda' else 'float32'}",
    ]
    return expect(load_recipe(name, [*settings, *sizes.settings, *fixed]), TranslationRecipe)


class OutOfTime(BaseException):
    """The run's minutes are over."""


def stop(*_: object) -> NoReturn:
    raise OutOfTime


def synthetic_batches(count: int, tokens: int, vocabulary: int, device: torch.device, seed: int = 0) -> list[Batch]:
    """Return batches of at most `tokens` tokens a side, with lengths of 3 to 40 tokens, about 15 on average."""
    generator = torch.Generator().manual_seed(seed)
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
    model = Transformer(recipe.model, sizes.vocabulary, sizes.vocabulary, device)
    training = recipe.training.model_copy(update={"compile": compiled})
    loss = partial(text_loss, training.label_smoothing)
    return model, stepper(model, loss, training, batches, device)


def first_steps(sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Compare the first steps of a process, whose shapes are new, with the same number of later ones.

    Step 1 compiles H's build and pull-back; its seconds are part of the first steps' and are given on their own too.
    """
    recipe = recipe_of("multi30k-de-en", sizes, device, "model.algebra=phm", "model.n=4")
    iterator = iter(synthetic_batches(2 * sizes.steps, sizes.batch_tokens, sizes.vocabulary, device))
    batch: list[Batch] = []  # of the next step
    _, step = training_steps(recipe, sizes, batch, device)
    seconds = []
    for count in (1, sizes.steps - 1, sizes.steps):
        began = time.perf_counter()
        for _ in range(count):
            batch[:] = [next(iterator)]
            step()
        wait(device)
        seconds.append(time.perf_counter() - began)
    first, others, later = seconds
    return {
        "steps": sizes.steps,
        "seconds": {"step 1": first, "the other first steps": others, "later steps": later},
        "speed of the first": later / (first + others),
        "speed of the first without step 1": later / others * (sizes.steps - 1) / sizes.steps,
    }


class Maps(nn.Module):
    """Maps of one shape that read the same input; the output is their sum."""

    def __init__(self, maps: Sequence[nn.Module]) -> None:
        super().__init__()
        self.maps = nn.ModuleList(maps)

    def forward(self, x: Tensor) -> Tensor:
        outputs = [layer(x) for layer in self.maps]
        return outputs[0] if len(outputs) == 1 else torch.stack(outputs).sum(0)


def layers(sizes: Sizes, device: torch.device) -> list[dict[str, Any]]:
    """Time a forward and backward pass of maps, the build and pull-back of H included, against ``nn.Linear``.

    One step has one map, or several of a shape, as in a Transformer.
    """
    rows = []
    for d, k in sizes.shapes:
        for count in sizes.maps:
            torch.manual_seed(0)
            modules = {
                "nn.Linear": Maps([nn.Linear(d, k) for _ in range(count)]),
                "A": Maps([PHMLinear(d, k, n=4) for _ in range(count)]),
                "rank 4": Maps([PHMLinear(d, k, n=4, rank=4, execution="rank") for _ in range(count)]),
            }
            x = torch.randn(sizes.tokens, d)
            calls = {name: training_call(module.to(device), x.to(device)) for name, module in modules.items()}
            timings = time_in_turns(f"{d} → {k}", calls, rounds=sizes.rounds, device=device)
            for name, module in modules.items():
                exact = sum(
                    nn.functional.linear(x.double(), layer.weight.detach().double().cpu(), layer.bias.double().cpu())
                    for layer in module.maps
                )
                error = relative_error(calls[name](), exact)
                shape = {"in": d, "out": k, "maps": count, "stored as": name}
                rows.append({**shape, **figures(timings[name]), "error": error})
    return rows


def relative_error(y: Tensor, exact: Any) -> float:
    return float((y.cpu().double() - exact.detach()).norm() / exact.detach().norm())


def lstm(sizes: Sizes, device: torch.device) -> list[dict[str, Any]]:
    """Time a forward and backward pass of the LSTM against ``nn.LSTM``."""
    x = torch.randn(sizes.sequences, 40, sizes.hidden, device=device)
    modules = {
        "nn.LSTM": nn.LSTM(sizes.hidden, sizes.hidden, batch_first=True),
        "A": PHMLSTM(sizes.hidden, sizes.hidden, n=4),
    }
    exact = {name: to_dense(module).double()(x.cpu().double())[0] for name, module in modules.items()}
    calls = {name: training_call(module.to(device), x) for name, module in modules.items()}
    timings = time_in_turns("LSTM", calls, rounds=sizes.rounds, device=device)
    return [
        {"stored as": name, **figures(timing), "error": relative_error(calls[name](), exact[name])}
        for name, timing in timings.items()
    ]


def timed_recipe(
    settings: Sequence[str], sizes: Sizes, device: torch.device, *, compiled: bool = False
) -> list[dict[str, Any]]:
    """Time whole training steps of a recipe against its dense twin, or with ``training.compile``."""
    recipe = recipe_of(settings[0], sizes, device, *settings[1:])
    return timed_training(settings[0], recipe, sizes, sizes.batch_tokens, device, compiled=compiled and sizes.compiles)


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
    timings = time_in_turns(name, calls, rounds=sizes.rounds, device=device)
    token_count = sum(batch.source.numel() + batch.target_tokens for batch in batches)
    return [
        {
            "recipe": name,
            "model": variant,
            "compiled": compiled,
            "parameters": parameters_of(models[variant]),
            "tokens_per_second": token_count / timing.seconds.median,
            "speed": asdict(timing.ratio.inverse),
            "peak_bytes_of_a_step": peaks[variant],
        }
        for variant, timing in timings.items()
    ]


def training_call(module: nn.Module, x: Tensor) -> Callable[[], Tensor]:
    """Return a function that runs a forward and a backward pass, within ``Leaves``, and returns y.

    It computes in bfloat16 if the device does: torch has no LSTM in bfloat16 for a processor without AVX-512.
    """
    leaf, leaves = x.clone().requires_grad_(), Leaves(module)

    def call() -> Tensor:
        module.zero_grad(set_to_none=True)
        leaf.grad = None
        with leaves.active():
            with torch.autocast(x.device.type, torch.bfloat16, enabled=has_bfloat16(x.device)):
                output = module(leaf)
            y: Tensor = output[0] if isinstance(output, tuple) else output
            y.backward(torch.ones_like(y))
        return y.detach()

    return call


def figures(timing: Timing) -> dict[str, Any]:
    return {"seconds": asdict(timing.seconds), "ratio": asdict(timing.ratio)}


def tests(sizes: Sizes, device: torch.device) -> dict[str, Any]:
    """Run the CUDA tests, and return pytest's exit status and last line."""
    command = [sys.executable, "-m", "pytest", "-q", *TESTS]
    process = subprocess.run(command, check=False, cwd=ROOT, capture_output=True, text=True)
    if process.returncode:
        sys.stderr.write(process.stdout[-4000:])
    lines = process.stdout.strip().splitlines()
    return {"status": process.returncode, "summary": lines[-1] if lines else ""}


# Compilers need the most time, so they come last; the first steps come first, in a process that has compiled nothing.
MEASURES: dict[str, Callable[[Sizes, torch.device], Any]] = {
    "first_steps": first_steps,
    "layers": layers,
    "lstm": lstm,
    "training": partial(timed_recipe, PLAIN),
    "fast_training": partial(timed_recipe, FAST),
    "iwslt_sized": iwslt_sized,
    "tests": tests,
    "compiled_training": partial(timed_recipe, PLAIN, compiled=True),
    "compiled_fast_training": partial(timed_recipe, FAST, compiled=True),
}


def main() -> int:
    """Write the measurements, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/gpu-check.json"))
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on any device, without the tests")
    parser.add_argument("--minutes", type=float, default=9.0, help="the run stops after this time")
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
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * options.minutes)
    missing = dict.fromkeys(MEASURES, "not measured: no time was left")
    try:
        for name, measure in MEASURES.items():
            if not (options.smoke and measure is tests):
                document[name] = measure(sizes, device)
            document["seconds"] = time.monotonic() - began
            del missing[name]
            write_json(options.output, document)  # keeps these measurements if a later one fails
    except OutOfTime:
        write_json(options.output, document | missing)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    passed = options.smoke or ("tests" not in missing and document["tests"]["status"] == 0)
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
