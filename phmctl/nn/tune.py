"""A stand-in: every map that holds factors is applied dense."""

from collections.abc import Mapping

from torch import nn

from phmctl.nn.linear import PHMLinear


def tune(model: nn.Module, tokens: int) -> dict[str, str]:
    """Set ``.execution`` of every map that holds factors, and return it by module name."""
    chosen = {name: "dense" for name, module in model.named_modules() if _has_factors(module)}
    set_executions(model, chosen)
    return chosen


def set_executions(model: nn.Module, executions: Mapping[str, str]) -> None:
    """Set ``.execution`` of modules by their names."""
    for name, execution in executions.items():
        model.get_submodule(name).execution = execution


def _has_factors(module: nn.Module) -> bool:
    return isinstance(module, PHMLinear) and module._parameters.get("W") is not None
