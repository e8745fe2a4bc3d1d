"""Which execution of a map is faster here: measured once, before training, and set."""

from collections.abc import Mapping
from functools import partial

import torch
from torch import nn

from phmctl.errors import RankError, UserError, check_known
from phmctl.nn.linear import DENSE, EXECUTIONS, RANK, PHMLinear
from phmctl.timing import alternate


def tune(model: nn.Module, tokens: int = 4096) -> dict[str, str]:
    """Time ``dense`` against ``rank`` once for each shape of map, forward and backward, and set the faster one.

    Maps without factors (a learned rule held as A) have nothing to choose and are left out.

    Args:
        model: any module with :class:`~phmctl.PHMLinear` maps, on its device.
        tokens: rows of a batch in training.

    Returns:
        the execution of each map by its name in the model; :func:`set_executions` sets the same again.

    Raises:
        UserError: there is no token.
    """
    if tokens < 1:
        raise UserError(f"tune needs tokens of at least 1, not {tokens}")
    fastest: dict[tuple[object, ...], str] = {}
    chosen = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, PHMLinear) or layer.factors is None:
            continue
        shape = layer.in_features, layer.out_features, layer.n, len(layer.V), layer.S.dtype, layer.S.device
        if shape not in fastest:
            fastest[shape] = _fastest(layer, tokens)
        layer.execution = chosen[name] = fastest[shape]
    return chosen


def set_executions(model: nn.Module, executions: Mapping[str, str]) -> None:
    """Set the execution of maps by their names, as :func:`tune` returned them.

    Raises:
        RankError: ``rank`` for a map without factors.
        UserError: the model has no PHM map of a name, or there is no such execution.
    """
    for name, execution in executions.items():
        check_known("execution", execution, EXECUTIONS)
        try:
            layer = model.get_submodule(name)
        except AttributeError:
            layer = nn.Identity()
        if not isinstance(layer, PHMLinear):
            raise UserError(f"the model has no PHM map {name!r} to set an execution of")
        if execution == RANK and layer.factors is None:
            raise RankError(f"{name} holds no factors, which execution 'rank' needs")
        layer.execution = execution


def _fastest(layer: PHMLinear, tokens: int) -> str:
    leaves = [part for part in layer.parameters() if part.requires_grad]
    x = torch.randn(
        tokens, layer.in_features, device=layer.S.device, dtype=layer.S.dtype,
        generator=torch.Generator(layer.S.device).manual_seed(0),
    ).requires_grad_()  # fmt: skip
    gradient = x.new_ones(tokens, layer.out_features)

    def step(execution: str) -> None:
        layer.execution = execution
        with torch.enable_grad():
            torch.autograd.grad(layer(x), [x, *leaves], gradient)

    seconds = alternate({name: partial(step, name) for name in (DENSE, RANK)}, rounds=5, seconds=0.02)
    return min(seconds, key=lambda name: sorted(seconds[name])[len(seconds[name]) // 2])
