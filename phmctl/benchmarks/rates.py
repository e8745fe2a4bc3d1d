"""``bench rates``: the learning rate of each map's factors, and how far a step of it moves the map's output.

A step here is Adam's first: each number moves by its rate, against the sign of its gradient. The gradient is that of
one training batch at the start; the change of the output is compared with that by a step of the dense twin's weight.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.console import Table
from phmctl.data.prepared.folder import data_root
from phmctl.devices import isolated, pick_device
from phmctl.nn.convert import to_dense
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import KroneckerWeight, TwoFactorLinear
from phmctl.nn.tuning import dense_rate
from phmctl.recipe.schema import Recipe
from phmctl.tasks.registry import kind_of
from phmctl.training.optimiser import build_rates, mean_loss

_TOKENS = 512  # inputs of a map that its output is measured on
_STEP = 1e-3  # of the weight's scale: small, so that the change is linear in it


def bench_rates(recipe: Recipe, data: Path | None = None) -> list[dict[str, Any]]:
    """Return a row for each map and factor: ``map``, ``factor``, ``rate`` and ``multiple`` of the recipe's, ``change``.

    `change` is the root mean square of what one step of this factor alone moves the map's output by, over that of a
    step of the dense twin's weight.

    Raises:
        DataError: the data is not prepared.
    """
    training, device = recipe.training, pick_device(recipe.training.device)
    task = kind_of(recipe).open(recipe, data or data_root())
    with isolated(device, training.threads):
        torch.manual_seed(training.seed)
        model = task.build_model(device)
        rates = build_rates(model, training)
        dense = to_dense(model).eval()
        inputs: dict[str, Tensor] = {}
        _watch(dense, inputs)
        mean_loss(task, dense, task.collate(task.plan(0)[0]).to(device)).backward()  # type: ignore[no-untyped-call]
        own: dict[Tensor, float] = {parameter: rates[name] for name, parameter in model.named_parameters()}
        twins = dict(dense.named_modules())
        rows = []
        for name, module in model.named_modules():
            gradient = getattr(twins.get(name), "weight", torch.empty(0)).grad
            if isinstance(module, KroneckerWeight | TwoFactorLinear) and gradient is not None:
                for factor, multiple, change in _changes(module, gradient, inputs.get(name), own):
                    rate = training.learning_rate * multiple
                    rows.append({"map": name, "factor": factor, "rate": rate, "multiple": multiple, "change": change})
    return rows


def rates_table(recipe: Recipe, rows: list[dict[str, Any]]) -> Table:
    cells = [
        (row["map"], row["factor"], f"{row['rate']:.2e}", f"{row['multiple']:.3g}", f"{row['change']:.2f}")
        for row in rows
    ]
    title = f"{recipe.name}, {recipe.variant}: change of a map's output by a step, 1 is that of the dense weight"
    return Table(title, ["map", "factor", "rate", "rate / recipe's", "change / dense twin's"], cells, text=(0, 1))


def _watch(dense: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Keep the first inputs (T, d) of each linear map."""
    for name, module in dense.named_modules():
        if isinstance(module, nn.Linear):

            def keep(module: nn.Module, args: tuple[Tensor, ...], name: str = name) -> None:
                inputs.setdefault(name, args[0].detach().flatten(0, -2)[:_TOKENS])

            module.register_forward_pre_hook(keep)


def _changes(
    module: KroneckerWeight | TwoFactorLinear, gradient: Tensor, x: Tensor | None, rates: Mapping[Tensor, float]
) -> Iterator[tuple[str, float, float]]:
    """Yield of each factor its name, its rate and its change; of an LSTM's map and a table's on random inputs."""
    H = module.weight  # (k, d); the dense copy may have fewer rows
    G = nn.functional.pad(gradient, (0, 0, 0, len(H) - len(gradient)))
    x = torch.randn(_TOKENS, H.shape[1], device=H.device) if x is None else x
    step = _STEP * H.detach().square().mean().sqrt()
    start = H.detach().clone()
    moving = G.abs().sum(1, keepdim=True) > 0  # rows of a table that the batch has

    def moved(change: Tensor) -> float:
        return float(((change * moving) @ x.T).square().mean().sqrt())

    twin = moved(step * (1.0 if isinstance(module, PHMEmbedding) else dense_rate(H.shape[1])) * G.sign())
    factors = {name: part for name, part in module.named_parameters() if "bias" not in name}
    gradients = torch.autograd.grad(H, list(factors.values()), G)
    with torch.no_grad():
        for (name, part), own in zip(factors.items(), gradients, strict=True):
            before = part.clone()
            part.sub_(step * rates[part] * own.sign())
            change = module.weight - start
            part.copy_(before)
            yield name, rates[part], moved(change) / twin
