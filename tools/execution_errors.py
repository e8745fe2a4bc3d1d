"""How exact each execution is on a trained translator: ``python tools/execution_errors.py RUN [--split test]``.

Every PHM map of the run's best checkpoint gets the input that it has in the model (a batch of the split's own text) and
is applied in float32 by each execution. What is told is the largest relative error, in the Frobenius norm, of any map
against the definition in float64. Then the split is translated by each execution, and the lines that differ from those
of ``dense`` are shown with their scores.
"""

import argparse
import itertools
import sys
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn

from phmctl.algebra.kronecker import materialise_reference
from phmctl.decoding.loading import load_translator
from phmctl.nn.kept_factors import set_execution
from phmctl.nn.linear import PHMLinear
from phmctl.runs import Run
from phmctl.tasks.registry import kind_of

EXECUTIONS = ("dense", "factored", "rank")


def inputs_of(model: nn.Module, use: object) -> dict[PHMLinear, Tensor]:
    """Return what each map is given first while something is done with the model."""
    seen: dict[PHMLinear, Tensor] = {}

    def note(module: nn.Module, given: tuple[Tensor, ...]) -> None:  # what a hook returns would be taken for the input
        seen.setdefault(cast("PHMLinear", module), given[0].detach().clone())

    hooks = [
        module.register_forward_pre_hook(note)
        for module in model.modules()
        if isinstance(module, PHMLinear) and module.n > 1
    ]
    use()  # type: ignore[operator]
    for hook in hooks:
        hook.remove()
    return seen


@torch.no_grad()
def error(layer: PHMLinear, x: Tensor) -> float:
    """Return the relative error of a map's output against the definition in float64."""
    H = materialise_reference(layer.A.double(), layer.S.double())
    exact = x.double() @ H.t() + (0 if layer.bias is None else layer.bias.double())
    return float((layer(x).double() - exact).norm() / exact.norm())


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--split", default="test")
    options = parser.parse_args()
    run = Run.open(options.run)
    lines = kind_of(run.recipe).split_lines(run, options.split)
    translator = load_translator(run, cleaned=True, keep_factors=False)
    maps = inputs_of(translator.engine.model, lambda: translator.translate(lines[:64]))
    found = {}
    for name in EXECUTIONS:
        set_execution(translator.engine.model, name, keep=False)
        worst = max(error(layer, x) for layer, x in maps.items())
        found[name] = [best[0] for best in translator.translate(lines)]
        differ = [index for index, best in enumerate(found[name]) if best.text != found["dense"][index].text]
        sys.stdout.write(f"{name:9} {len(maps)} maps, largest relative error {worst:.1e}; ")
        sys.stdout.write(f"{len(differ)} of {len(lines)} lines differ from dense\n")
        for index, which in itertools.product(differ, ("dense", name)):
            best = found[which][index]
            sys.stdout.write(f"  line {index + 1}, {which}: {best.score:.7f} {best.text}\n")


if __name__ == "__main__":
    main()
