"""Learning rates for each factor of a weight, and :func:`tune`, which measures the faster execution of each map.

Under Adam each entry of a tensor moves by about the learning rate in a step, whatever its scale. A dense weight
(k, d) needs a rate that falls with d (muP: Yang et al. 2021, "Tensor Programs V", table 3). A weight that is
made of factors needs a rate for each of them (Qiu et al. 2024, "Compute Better Spent"): entries of A are about √(d/n)
times as large as entries of S, and at one rate A hardly moves.

The rule here: in a step every factor f moves by the same fraction of its scale, ``rate(f) = c · rate(H) · rms(f) /
rms(H)``, which is Adam on factors that are scaled to the entries of the weight H. The rate of a dense weight is
``64 / d`` of the model's rate, and at most the model's rate. c is 2 for Kronecker sums, where a step of S moves the
output 0.9 to 1.7 times as far as a step of the dense weight, and 1/2 for products of factors (W, U and V; low rank;
Monarch), where it moves the output less far (``phmctl bench rates``). Both were chosen by the loss; for factors the
best rates lie within a factor of two, up to rank four (docs/results.md). Tables, dense or not, have the model's rate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from phmctl.errors import UserError
from phmctl.nn.convert import Kronecker, is_conv1d
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import DENSE, RANK, PHMLinear, StructuredWeight
from phmctl.nn.structures import rms
from phmctl.timing import alternate

_BASE_WIDTH = 64  # the widest dense map that has the model's rate


def parameter_groups(model: nn.Module, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Return parameter groups for Adam and similar optimisers, with a rate for each factor of each weight.

    Weights of PHM layers, of converted modules and of torch's own layers get the rates of this module; tables, norms
    and biases get `lr`. Of the factors of a weight only the last decays (S; L of two thin factors), so that H decays
    as fast as a dense weight.

    Args:
        model: a model with its initial weights, whose scales set the rates.
        lr: rate of tables, norms and biases. A schedule multiplies the ``lr`` of each group.
        weight_decay: weight decay of AdamW. Each group has its own, which overrides the optimiser's argument.

    Raises:
        UserError: `lr` is not a positive number.
    """
    if not 0 < lr < math.inf:
        raise UserError(f"lr = {lr}: the learning rate must be above 0 and finite")
    return grouped(model, relative_rates(model), lr, weight_decay)


def relative_rates(model: nn.Module) -> dict[str, float]:
    """Return the rate of each trainable parameter as a multiple of the model's rate, by its name."""
    rates: dict[Tensor, float] = {}
    for weight in _weights(model):
        for factor in weight.factors:
            scale = rms(factor)
            relative_scale = scale / weight.scale if weight.scale and scale else 1.0
            rates.setdefault(factor, float(f"{weight.gain * weight.rate * relative_scale:.3g}"))
    return {name: rates.get(tensor, 1.0) for name, tensor in model.named_parameters() if tensor.requires_grad}


def grouped(
    model: nn.Module, rates: Mapping[str, float], lr: float, weight_decay: float, *, one_rate: bool = False
) -> list[dict[str, Any]]:
    """Return a parameter group for each rate and decay; :func:`parameter_groups` says which parameters decay.

    With `one_rate` dense maps too are taken to have the model's rate.
    """
    decays: dict[Tensor, float] = {}  # AdamW multiplies a group's decay by its rate
    for weight in _weights(model):
        for factor in weight.factors:
            decay = 1.0 if one_rate else weight.rate
            decays.setdefault(factor, decay if factor is weight.factors[-1] else 0.0)
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = rates[name]
            decay = weight_decay * (decays[parameter] / rate if parameter in decays else 1.0)
            group = {"params": [], "lr": lr * rate, "relative": rate, "weight_decay": decay}
            groups.setdefault((rate, decay), group)["params"].append(parameter)
    return list(groups.values())


def dense_rate(fan_in: int) -> float:
    """Return the rate of a dense map of `fan_in` inputs as a multiple of the model's rate."""
    return min(1.0, _BASE_WIDTH / fan_in)


@dataclass(frozen=True)
class _Weight:
    scale: float  # root mean square of the entries of H; 0 if the only factor is H
    rate: float  # rate of the dense weight as a multiple of the model's
    gain: float  # c
    factors: Sequence[nn.Parameter]  # weight decay applies to the last


@torch.no_grad()
def _weights(model: nn.Module) -> list[_Weight]:
    """Return the weights of a model, tables first: a map that is tied to a table gets its rate."""
    weights: list[_Weight] = []
    for module in model.modules():
        if isinstance(module, StructuredWeight):
            weights.append(_structured(module))
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
            converted = any(isinstance(part, Kronecker) for part in module.modules())
            weights.append(_Weight(rms(module.weight) if converted else 0.0, 1.0, 1.0, list(module.parameters())))
        elif not hasattr(module, "normalized_shape"):  # the weight of a norm may have several axes
            named = module.named_parameters(recurse=False)
            weights += _dense(module, [parameter for name, parameter in named if "weight" in name])
            weights += _parametrized(module)
    return sorted(weights, key=lambda weight: weight.rate != 1.0)


def _structured(module: StructuredWeight) -> _Weight:
    structure, tensors = module.structure, module.tensors()
    factors = [parameter for name in tensors if (parameter := module._parameters.get(name)) is not None]
    if isinstance(module, PHMEmbedding):
        return _Weight(structure.scale(tensors), 1.0, 1.0, factors)
    return _Weight(structure.scale(tensors), dense_rate(module.columns), structure.gain, factors)


def _dense(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[_Weight]:
    matrices = [parameter for parameter in parameters if parameter.dim() > 1]
    return [_Weight(0.0, _rate(module, parameter), 1.0, [parameter]) for parameter in matrices]


def _parametrized(module: nn.Module) -> list[_Weight]:
    weights: list[_Weight] = []
    parametrizations: Any = getattr(module, "parametrizations", nn.ModuleDict())
    for name, chain in parametrizations.items():
        H = getattr(module, name)
        if isinstance(chain[0], Kronecker):
            weights.append(_Weight(rms(H), _rate(module, H), chain[0].structure.gain, list(chain.parameters())))
        else:  # torch's own, such as spectral_norm
            weights += _dense(module, [parameter for parameter in chain.parameters() if parameter.shape == H.shape])
    return weights


def _rate(module: nn.Module, weight: Tensor) -> float:
    inputs_first = is_conv1d(module) or getattr(module, "transposed", False)  # weight (inputs, outputs, ...)
    inputs = len(weight) // getattr(module, "groups", 1) if inputs_first else weight.shape[1]
    return dense_rate(inputs * math.prod(weight.shape[2:]))


def tune(model: nn.Module, tokens: int = 4096) -> dict[str, str]:
    """Time ``dense`` against ``rank`` once for each shape of map, forward and backward, and set the faster execution.

    Within ``torch.autocast`` they are timed in its precision: use the precision of the training. Maps without factors
    (a learned rule held as A) are skipped.

    Args:
        model: any module with :class:`~phmctl.PHMLinear` maps, on its device.
        tokens: rows of a batch in training.

    Returns:
        the execution of each map, by its name in the model.
    """
    fastest: dict[tuple[object, ...], str] = {}
    executions = {}
    for name, layer in model.named_modules():
        if isinstance(layer, PHMLinear) and (factors := layer.factors) is not None:
            shape = layer.in_features, layer.out_features, layer.n, len(factors.V), layer.S.dtype, layer.S.device
            if shape not in fastest:
                fastest[shape] = _faster(layer, tokens)
            layer.execution = executions[name] = fastest[shape]
    return executions


def _faster(layer: PHMLinear, tokens: int) -> str:
    leaves = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    generator = torch.Generator(layer.S.device).manual_seed(0)
    x = torch.randn(tokens, layer.in_features, device=layer.S.device, dtype=layer.S.dtype, generator=generator)
    x.requires_grad_()
    gradient = x.new_ones(tokens, layer.out_features)

    def step(execution: str) -> None:
        layer.execution = execution
        torch.clear_autocast_cache()  # a training casts the weights again in each step
        with torch.enable_grad():
            torch.autograd.grad(layer(x), [x, *leaves], gradient)

    calls = {name: partial(step, name) for name in (DENSE, RANK)}
    seconds = alternate(calls, rounds=5, seconds=0.02, device=layer.S.device)
    return min(seconds, key=lambda name: median(seconds[name]))
