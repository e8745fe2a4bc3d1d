"""Time functions alternately, so that a drift of the machine's speed affects all of them equally."""

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
    """Return the seconds per call in each round, by the name of the function.

    Every round measures each function once and starts with another function than the round before, so that no function
    always follows the same one. Each function is called once or twice before the first sample.

    Args:
        calls: the functions, by name.
        rounds: samples per function.
        seconds: approximate length of a sample. Short functions are called repeatedly.
        device: the device of the functions. A CUDA device is synchronised before and after each sample.
        advance: called with 1 after each sample and each warm-up, ``(rounds + 1) * len(calls)`` times.
    """
    names = list(calls)
    repeats = {}
    for name in names:
        first = mean_seconds(calls[name], 1, device)
        warm = min(first, mean_seconds(calls[name], 1, device)) if first < seconds else first
        repeats[name] = max(1, math.ceil(seconds / max(warm, 1e-9)))
        advance(1)
    samples: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds):
        turn = index % max(1, len(names))
        for name in names[turn:] + names[:turn]:
            samples[name].append(mean_seconds(calls[name], repeats[name], device))
            advance(1)
    return samples


def wait(device: torch.device | str) -> None:
    """Wait until a device has finished."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def mean_seconds(call: Callable[[], object], repeats: int, device: torch.device | str) -> float:
    """Return the mean seconds of `repeats` calls."""
    wait(device)
    began = time.perf_counter()
    for _ in range(repeats):
        call()
    wait(device)
    return (time.perf_counter() - began) / repeats
