"""Timing a few ways to compute the same thing, to take the fastest: in turns, the lowest of several samples.

Where others are at work on the machine a mean says more about them than about us; the shortest sample is the nearest to
a quiet machine, and turns spread what is left over all candidates.
"""

import math
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

Call = Callable[[], object]
Clock = Callable[[], float]
K = TypeVar("K")

SAMPLE = 5e-4  # seconds that a sample takes at least
ROUNDS, FEWEST = 8, 3  # samples of each candidate; and if these take long; twice as many of those that are close
LONG = 0.1  # seconds after which the fewest will do
HOPELESS, CLOSE = 1.5, 1.15  # of the best: such a candidate is measured no more; and after so many samples
EARLY, UNSURE = 2, 2.5  # after so few samples only what is this much slower is: memory may not be at hand yet
COLD = 5e-2  # seconds that the very first call may take in any case
WARM = 2e-2  # what takes less is called once more before each of its first samples, in memory of its own then


def clock_of(device: torch.device | str) -> Clock:
    """Return a function that gives the seconds at which all work submitted so far to a device is done."""
    device = torch.device(device)
    if device.type != "cuda":
        return time.perf_counter

    def clock() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return clock


def sample(call: Call, clock: Clock, calls: int) -> float:
    """Return the seconds of one call, as the mean of several."""
    start = clock()
    for _ in range(calls):
        call()
    return (clock() - start) / calls


def own_clock(device: torch.device | str) -> Clock:
    """Return the clock to compare candidates by: on one thread of a CPU that of the thread, which stops for others."""
    alone = torch.device(device).type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if alone else clock_of(device)


def lowest_seconds(candidates: Mapping[K, Call], clock: Clock = time.perf_counter) -> dict[K, float]:
    """Return the shortest sample of each candidate."""
    began, names = clock(), list(candidates)
    best = {name: sample(call, clock, 1) for name, call in candidates.items()}  # memory is touched, kernels are made
    limit = max(COLD, UNSURE * min(best.values()))
    warm = [name for name in names if best[name] <= limit or name == names[0]]  # the first one wakes torch up
    for name in warm:
        best[name] = min(best[name], sample(candidates[name], clock, 1))
    calls = {name: max(1, math.ceil(SAMPLE / max(best[name], 1e-9))) for name in warm}
    for number in range(2 * ROUNDS):
        many = FEWEST if clock() - began > LONG else ROUNDS
        share = UNSURE if number < EARLY else HOPELESS if number < many else CLOSE
        bound = share * min(best.values())
        if number >= 2 * many or (number >= many and sum(best[name] <= bound for name in warm) == 1):
            break
        turn = number % len(warm)
        for name in warm[turn:] + warm[:turn]:
            if best[name] <= bound:
                if number < FEWEST and calls[name] == 1 and best[name] < WARM:
                    candidates[name]()
                best[name] = min(best[name], sample(candidates[name], clock, calls[name]))
    return best
