"""How training scales over processes: the figures of docs/scaling.md.

    python tools/scaling.py speed RECIPE --rounds 5      # 1 process × 2 threads against 2 × 1, in turns
    python tools/scaling.py bytes                        # what a step sends, counted and computed
    python tools/scaling.py paper                        # step times on 8 to 1,024 GPUs, from these

``speed`` starts a real training of each kind and lets them take some steps in turns; who waits uses no core.
"""

import argparse
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from phmctl.console import emit, note
from phmctl.recipe.loading import load_recipe
from phmctl.recipe.schema import TranslationRecipe
from phmctl.tasks.registry import kind_of
from phmctl.training.processes import Processes, joined
from phmctl.training.train import train_task
from phmctl.training.wrapping import exchanging, wrap

WAYS = {"1 process × 2 threads": (1, 2), "2 processes × 1 thread": (2, 1)}
BASE = "table2-wmt18-en-ro"  # 6+6 layers, 512 wide
SIZES = {
    "base": ("model.width=512", "model.feed_forward=2048", "model.heads=8"),
    "big": ("model.width=1024", "model.feed_forward=4096", "model.heads=16"),
}
LAYERS = ("model.encoder_layers=6", "model.decoder_layers=6", "data.vocabulary=32768")
MB = 1e6


# -------------------------------------------------------------------------------------------------------- speed


def speed(recipe: str, rounds: int, steps: int, data: Path, settings: Sequence[str]) -> None:
    """Let trainings of both kinds take some steps in turns, and print tokens a second and the ratio of each round."""
    found: dict[str, list[float]] = {name: [] for name in WAYS}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as held:
        command = [sys.executable, __file__, "pace", recipe, "--steps", str(steps), "--data", str(data)]
        command += ["--runs", folder, *(f"--set={change}" for change in settings)]
        teams = {name: [held.enter_context(each) for each in team(command, *way)] for name, way in WAYS.items()}
        for name, processes in teams.items():
            note(f"{name}: {turn(processes):,.0f} tokens in the first steps, which do not count")
        for round_ in range(rounds):
            for name in list(WAYS) if round_ % 2 == 0 else list(WAYS)[::-1]:
                began = time.perf_counter()
                tokens = turn(teams[name])
                found[name].append(tokens / (time.perf_counter() - began))
            note(
                f"round {round_ + 1}: "
                + ", ".join(f"{name} {rates[-1]:,.0f} tokens/s" for name, rates in found.items())
            )
        for process in (each for processes in teams.values() for each in processes):
            process.kill()
    one, two = found.values()
    ratios = [b / a for a, b in zip(one, two, strict=True)]
    for name, rates in found.items():
        emit(f"{name}: {spread(rates, ',.0f')} tokens/s\n")
    emit(f"ratio, 2 × 1 to 1 × 2, within a round: {spread(ratios, '.2f')}\n")


def team(command: Sequence[str], processes: int, threads: int) -> list[subprocess.Popen[str]]:
    """Start a training that waits to be told to go on; its processes are given what torchrun gives them."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    common = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "OMP_NUM_THREADS": threads}
    common |= {"MASTER_ADDR": "localhost", "MASTER_PORT": port}
    started = []
    for rank in range(processes):
        own = {key: str(value) for key, value in (common | {"RANK": rank, "LOCAL_RANK": rank}).items()}
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, env=os.environ | own, **pipes))
    return started


def turn(processes: Sequence[subprocess.Popen[str]]) -> int:
    """Let the processes of a training take their steps; return the tokens of these."""
    for process in processes:
        print("go", file=process.stdin, flush=True)
    tokens = [int(process.stdout.readline()) for process in processes if process.stdout]
    return tokens[0]


def pace(recipe: str, steps: int, data: Path, runs: Path, settings: Sequence[str]) -> None:
    """Train, and wait for a line on stdin after every so many steps."""
    resolved = load_recipe(
        recipe, ["training.steps=1000000", "training.log_every=1000000", "training.device=cpu", *settings]
    )
    task = kind_of(resolved).open(resolved, data)
    count, counted, done = task.cost, [0, 0], steps * resolved.training.accumulate

    def paced(rows: Any) -> Any:  # each process counts each micro-batch at the start of its step
        if counted[0] % done == 0:
            if counted[0]:
                print(counted[1], flush=True)  # noqa: T201
            counted[1] = 0
            if not sys.stdin.readline():
                raise SystemExit
        found = count(rows)
        counted[0], counted[1] = counted[0] + 1, counted[1] + found.tokens
        return found

    task.cost = paced  # type: ignore[method-assign]
    with joined(600) as processes:
        train_task(task, resolved, runs, quiet=True, processes=processes)


def spread(values: Sequence[float], form: str) -> str:
    """Return median, smallest and largest."""
    return f"{statistics.median(values):{form}} ({min(values):{form}} to {max(values):{form}})"


# -------------------------------------------------------------------------------------------------------- bytes


@dataclass(frozen=True)
class Sent:
    """What a step of a model sends.

    Attributes:
        counted: bytes in the buckets that are all-reduced in a step of four micro-batches.
        exchanges: buckets in the first three micro-batches, and in the last.
        computed: 4 bytes a parameter.
        maps: of these, those of the linear maps of the layers.
    """

    counted: int
    exchanges: tuple[int, int]
    computed: int
    maps: int


def build(size: str, n: int, device: str) -> tuple[TranslationRecipe, nn.Module]:
    """Return the Transformer of a size with maps of a PHM dimension; 1 is dense."""
    algebra = "real" if n == 1 else "phm"
    recipe = load_recipe(BASE, [f"model.n={n}", f"model.algebra={algebra}", *SIZES[size], *LAYERS])
    if not isinstance(recipe, TranslationRecipe):
        raise TypeError(BASE)
    kind = kind_of(recipe)
    return recipe, kind.build(recipe.model, kind.sizes(recipe).values, device)


def count_bytes(size: str, n: int) -> Sent:
    """Run two steps of four tiny micro-batches through the trainer's own wrapper; count what the second one exchanges.

    The first one is when torch learns in which order gradients come.
    """
    torch.manual_seed(1)
    _, model = build(size, n, "cpu")
    called = wrap(model, _Two(), torch.device("cpu"), "none")
    sent: list[list[int]] = [[] for _ in range(8)]

    def count(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        sent[step].append(bucket.buffer().nbytes)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    called.register_comm_hook(None, count)  # type: ignore[operator]
    ids = torch.tensor([[5, 6, 7, 3]])
    for step in range(8):
        with exchanging(called, last=step % 4 == 3):
            called(ids, ids, ids)[0].backward()
    parameters = dict(model.named_parameters())
    maps = sum(p.numel() for name, p in parameters.items() if name.startswith(("encoder.", "decoder.")))
    before = sum(len(buckets) for buckets in sent[4:7])
    total = 4 * sum(p.numel() for p in parameters.values())
    return Sent(sum(map(sum, sent[4:])), (before, len(sent[7])), total, 4 * maps)


class _Two(Processes):
    """A process that thinks it has company: what would be sent is counted, not sent."""

    count = 2  # type: ignore[assignment]


@contextmanager
def group_of_one() -> Iterator[None]:
    """A process group of this process alone."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        yield
    finally:
        dist.destroy_process_group()


def show_bytes() -> None:
    """Print a row a model."""
    with group_of_one():
        for size in SIZES:
            dense = count_bytes(size, 1)
            for n in (1, 4, 8):
                found = dense if n == 1 else count_bytes(size, n)
                emit(
                    f"| {size}, n = {n} | {found.counted / MB:.1f} | {found.computed / MB:.1f} | "
                    f"{found.exchanges[0]} + {found.exchanges[1]} | {found.maps / MB:.1f} | "
                    f"{found.maps / dense.maps:.3f} | {found.counted / dense.counted:.3f} |\n"
                )


# -------------------------------------------------------------------------------------------------------- paper


def estimate(bytes_: int, compute: float, gpus: int, bandwidth: float, latency: float, overlap: float) -> float:
    """Return the seconds of a step: computing, and what of a ring's all-reduce the backward pass does not hide.

    ``t = C + max(0, 2·(W − 1)/W · b/B + 2·(W − 1)·λ − h·C)``: a ring sends each byte twice but for a W-th, in 2(W − 1)
    rounds; the last micro-batch's backward pass, a share h of C, runs meanwhile.

    Args:
        bytes_: b, that a process has to exchange.
        compute: C, seconds of forward and backward of all micro-batches of the step.
        gpus: W.
        bandwidth: B, bytes a second between two neighbours.
        latency: λ, seconds a round.
        overlap: h.
    """
    exchange = 2 * (gpus - 1) / gpus * bytes_ / bandwidth + 2 * (gpus - 1) * latency
    return compute + max(0.0, exchange - overlap * compute)


def show_paper(tokens: int, flops: float, latency: float) -> None:
    """Print step times for two bandwidths; computing counts as dense, 6 operations a weight and token."""
    for size in SIZES:
        models = {n: sum(p.numel() for p in build(size, n, "meta")[1].parameters()) for n in (1, 4, 8)}
        _, dense = build(size, 1, "meta")
        weights = sum(p.numel() for p in dense.parameters())
        compute = 6 * weights * tokens / flops
        for bandwidth in (25e9, 3e9):
            for n, parameters in models.items():
                times = [
                    estimate(4 * parameters, compute, gpus, bandwidth, latency, overlap=2 / 3)
                    for gpus in (8, 32, 128, 1024)
                ]
                cells = " | ".join(f"{1000 * seconds:.1f}" for seconds in times)
                emit(f"| {size}, n = {n} | {4 * parameters / MB:.0f} | {bandwidth / 1e9:.0f} | {cells} |\n")


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("speed", "pace"):
        timed = commands.add_parser(name)
        timed.add_argument("recipe")
        timed.add_argument("--rounds", type=int, default=10)
        timed.add_argument("--steps", type=int, default=2, help="of a turn")
        timed.add_argument("--data", type=Path, default=Path("data"))
        timed.add_argument("--runs", type=Path)
        timed.add_argument("--set", action="append", default=[], dest="settings")
    commands.add_parser("bytes")
    paper = commands.add_parser("paper")
    paper.add_argument("--tokens", type=int, default=4096, help="of a GPU's part of a step")
    paper.add_argument("--flops", type=float, default=150e12, help="operations a second that a GPU really does")
    paper.add_argument("--latency", type=float, default=5e-6, help="seconds a round of the ring")
    given = parser.parse_args()
    if given.command == "speed":
        speed(given.recipe, given.rounds, given.steps, given.data, given.settings)
    elif given.command == "pace":
        pace(given.recipe, given.steps, given.data, given.runs, given.settings)
    elif given.command == "bytes":
        show_bytes()
    else:
        show_paper(given.tokens, given.flops, given.latency)


if __name__ == "__main__":
    main()
