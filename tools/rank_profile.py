"""Where the time of a layer by rank goes: ``python tools/rank_profile.py -d 512 -k 2048 --n 4 --tokens 4096``.

A forward and backward pass under torch's profiler, its operations told apart by name and shape. What each kind takes is
given as a share of the time of ``nn.Linear``, which is timed in turns with it.
"""

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from phmctl import PHMLinear
from phmctl.benchmarks.timing import compare

CALLS = 5


def kind_of(name: str, shapes: Sequence[Sequence[int]], rank: int) -> str:
    """Return what an operation of the rank product is for."""
    if name == "aten::mkldnn_convolution":
        return "block products"
    if name == "aten::baddbmm_":
        return "gradient of the blocks"
    if name in ("aten::bmm", "aten::baddbmm"):
        return "block products" if shapes and shapes[0] and shapes[0][0] == rank else "mixing"
    if name in ("aten::copy_", "aten::add_", "aten::add", "aten::sum", "aten::fill_"):
        return "copies and sums"
    return "the rest"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("-d", 512), ("-k", 2048), ("--n", 4), ("--tokens", 4096), ("--threads", 2)):
        parser.add_argument(name, type=int, default=default)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    layer = PHMLinear(options.d, options.k, n=options.n, parametrization="factors", execution="rank")
    dense = nn.Linear(options.d, options.k)
    x, gradient = torch.randn(options.tokens, options.d, requires_grad=True), torch.randn(options.tokens, options.k)

    def step(module: nn.Module) -> Tensor | None:
        module.zero_grad(set_to_none=True)
        module(x).backward(gradient)
        return x.grad

    timings = compare({"nn.Linear": lambda: step(dense), "rank": lambda: step(layer)}, rounds=9)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(CALLS):
            step(layer)
    seconds: dict[str, float] = defaultdict(float)
    for event in recorded.key_averages(group_by_input_shape=True):
        kind = kind_of(event.key, event.input_shapes, len(layer.V))
        seconds[kind] += 1e-6 * event.self_cpu_time_total / CALLS
    whole = timings["nn.Linear"].seconds.median
    sys.stdout.write(
        f"{layer.choice_for(options.tokens)}, R = {len(layer.V)}: {timings['rank'].ratio.median:.2f} of nn.Linear\n"
    )
    for kind, value in sorted(seconds.items(), key=lambda item: -item[1]):
        sys.stdout.write(f"  {kind:24} {value / whole:.2f}\n")


if __name__ == "__main__":
    main()
