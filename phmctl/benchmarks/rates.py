"""``bench rates``: the learning rates of a model's factors, and the change of each map's output by a step.

The step is the first step of Adam, which moves each number by its learning rate against the sign of its gradient. The
gradient is from a single batch at the start. The change of the output is compared with the change from a step of the
dense twin's weight.
"""

from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.algebra.initialisation import SeededDraws
from phmctl.console import Table
from phmctl.data.prepared import data_root
from phmctl.devices import isolated, pick_device
from phmctl.nn.convert import to_dense
from phmctl.nn.embedding import NarrowEmbedding, PHMEmbedding
from phmctl.nn.linear import StructuredWeight
from phmctl.nn.tuning import dense_rate
from phmctl.recipe.schema import Recipe
from phmctl.tasks.registry import trained_kind
from phmctl.training.optimiser import build_rates, mean_loss

_TOKENS = 512  # input rows with which a map's output is measured
_STEP = 1e-3  # step size relative to the weight's scale, small enough that the output changes linearly
_Map = StructuredWeight | NarrowEmbedding


def bench_rates(recipe: Recipe, data: str | Path | None = None) -> list[dict[str, Any]]:
    """Return a row for each factor of each map: ``map``, ``factor``, ``rate``, ``multiple`` and ``change``.

    `multiple` is the rate divided by the recipe's. `change` is the root mean square change of the map's output by one
    step of this factor alone, divided by the change by a step of the dense twin's weight.

    Raises:
        DataError: the data is not prepared.
    """
    training = recipe.training
    device = pick_device(training.device)
    task = trained_kind(recipe).open(recipe, data_root(data))
    with isolated(device, training.threads):
        with SeededDraws(training.seed):
            model = task.build_model(device)
        rates = build_rates(model, training)
        multiples: dict[Tensor, float] = {model.get_parameter(name): rate for name, rate in rates.items()}
        dense = to_dense(model).eval()
        inputs = _record_inputs(dense)
        mean_loss(task, dense, task.collate(task.plan(0)[0]).to(device)).backward()  # type: ignore[no-untyped-call]
        dense_modules = dict(dense.named_modules())
        rows = []
        for name, module in model.named_modules():
            gradient = getattr(dense_modules.get(name), "weight", torch.empty(0)).grad
            if isinstance(module, _Map) and gradient is not None:
                for factor, multiple, change in _changes(module, gradient, inputs.get(name), multiples):
                    rate = training.learning_rate * multiple
                    rows.append({"map": name, "factor": factor, "rate": rate, "multiple": multiple, "change": change})
    return rows


def rates_table(recipe: Recipe, rows: list[dict[str, Any]]) -> Table:
    cells = [
        (row["map"], row["factor"], f"{row['rate']:.2e}", f"{row['multiple']:.3g}", f"{row['change']:.2f}")
        for row in rows
    ]
    title = f"{recipe.name}, {recipe.variant}: change of each map's output by a step, relative to the dense weight's"
    return Table(title, ["map", "factor", "rate", "rate / recipe's", "change / dense twin's"], cells, text=(0, 1))


def _record_inputs(model: nn.Module) -> dict[str, Tensor]:
    """Return a dictionary that the next forward pass fills with the inputs (T, d) of each linear map."""
    inputs: dict[str, Tensor] = {}

    def record(name: str, module: nn.Module, args: tuple[Tensor, ...]) -> None:
        inputs.setdefault(name, args[0].detach().flatten(0, -2)[:_TOKENS])

    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_pre_hook(partial(record, name))
    return inputs


def _changes(
    module: _Map, gradient: Tensor, x: Tensor | None, multiples: Mapping[Tensor, float]
) -> Iterator[tuple[str, float, float]]:
    """Yield each factor's name, its rate as a multiple of the recipe's, and its change.

    Embeddings and an LSTM's maps are measured with random inputs, because the hooks record only inputs of linear maps.
    """
    H = module.weight  # (k, d); the dense copy may have fewer rows
    G = nn.functional.pad(gradient, (0, 0, 0, len(H) - len(gradient)))
    x = torch.randn(_TOKENS, H.shape[1], device=H.device) if x is None else x
    step = _STEP * H.detach().square().mean().sqrt()
    start = H.detach().clone()
    active = G.abs().sum(1, keepdim=True) > 0  # only rows of a table that occur in the batch move

    def output_change(change: Tensor) -> float:
        return float(((change * active) @ x.T).square().mean().sqrt())

    is_table = isinstance(module, PHMEmbedding | NarrowEmbedding)
    dense_change = output_change(step * (1.0 if is_table else dense_rate(H.shape[1])) * G.sign())
    factors = {name: factor for name, factor in module.named_parameters() if "bias" not in name and factor in multiples}
    gradients = torch.autograd.grad(H, list(factors.values()), G)
    with torch.no_grad():
        for (name, factor), factor_gradient in zip(factors.items(), gradients, strict=True):
            values = factor.clone()
            factor.sub_(step * multiples[factor] * factor_gradient.sign())
            change = module.weight - start
            factor.copy_(values)
            yield name, multiples[factor], output_change(change) / dense_change
