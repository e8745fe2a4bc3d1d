"""Timing calls in turns: where a machine's speed drifts, the drift falls on all of them alike."""

import math
import time
from collections.abc import Callable, Mapping

import torch


def alternate(
    calls: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    seconds: float = 0.002,
    device: torch.device | str = "cpu",
    advance: Callable[[int], object] = lambda count: None,
) -> dict[str, list[float]]:
    """Return the seconds of one call in each round, by name.

    A round samples every call once, and begins with another one than the round before, so that none always follows the
    same neighbour. Each call runs once or twice before its first sample.

    Args:
        calls: what to time, by name.
        rounds: samples of each.
        seconds: a sample repeats its call until it lasts about so long.
        device: what the calls run on; a CUDA device is waited for before and after each sample.
        advance: called with 1 after each sample and each warm-up, ``(rounds + 1) * len(calls)`` times.
    """
    names = list(calls)
    repeats = {}
    for name in names:
        first = _sample(calls[name], 1, device)
        warm = min(first, _sample(calls[name], 1, device)) if first < seconds else first
        repeats[name] = max(1, math.ceil(seconds / max(warm, 1e-9)))
        advance(1)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        turn = index % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            samples[name].append(_sample(calls[name], repeats[name], device))
            advance(1)
    return samples


def _sample(call: Callable[[], object], repeats: int, device: torch.device | str) -> float:

    def wait() -> None:
        if torch.device(device).type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    wait()
    return (time.perf_counter() - began) / repeats
