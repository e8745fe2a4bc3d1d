"""Peak memory of training steps, each candidate in a process of its own: ``python tools/peak_memory.py``.

A stack of layers with ReLU between them, forward and backward, float32 on the CPU. What is told is the process's
largest resident size less that before the first step: parameters are left out, their gradients are counted.
"""

import argparse
import json
import resource
import subprocess
import sys

import torch
from torch import nn

from phmctl import PHMLinear

CANDIDATES = ("nn.Linear", "dense", "rank", "rank, products computed again")


def stack(candidate: str, width: int, n: int, layers: int) -> nn.Sequential:
    """Build the layers of a candidate, with ReLU between them."""
    parts: list[nn.Module] = []
    for _ in range(layers):
        if candidate == "nn.Linear":
            layer: nn.Module = nn.Linear(width, width)
        else:
            execution, _, rest = candidate.partition(",")
            layer = PHMLinear(width, width, n=n, parametrization="factors", execution=execution, keep_products=not rest)
        parts += [layer, nn.ReLU()]
    return nn.Sequential(*parts)


def peak(candidate: str, width: int, n: int, layers: int, tokens: int) -> float:
    """Return the MB that three steps take beyond what was there before."""
    model, x = stack(candidate, width, n, layers), torch.randn(tokens, width)
    model[:2](x[:1]).sum().backward()  # libraries are loaded
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(3):
        model.zero_grad(set_to_none=True)
        model(x).square().mean().backward()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    """Measure one candidate (a child process), or all and print them as a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name, default in (("width", 1024), ("n", 4), ("layers", 6), ("tokens", 4096)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--candidate", choices=CANDIDATES)
    options = parser.parse_args()
    if options.candidate:
        sys.stdout.write(
            json.dumps(peak(options.candidate, options.width, options.n, options.layers, options.tokens)) + "\n"
        )
        return
    sizes = [f"--{name}={getattr(options, name)}" for name in ("width", "n", "layers", "tokens")]
    found = {}
    for name in CANDIDATES:
        child = [sys.executable, __file__, *sizes, "--candidate", name]
        found[name] = json.loads(subprocess.run(child, check=True, capture_output=True, text=True).stdout)
        sys.stdout.write(f"{name:32} {found[name]:7.0f} MB  {found[name] / found['nn.Linear']:.2f}\n")


if __name__ == "__main__":
    main()
