"""Learning rates for each factor of a weight, and :func:`tune`, which measures the faster execution of each map.

Adam moves each entry of a tensor by about the learning rate in a step, at any scale of the entry. A dense weight
(k, d) needs a rate that falls with d (muP: Yang et al. 2021, "Tensor Programs V", table 3). A weight that is a product
of factors needs a rate for each factor (Qiu et al. 2024, "Compute Better Spent"): entries of A are about √(d/n) times
as large as entries of S, so A hardly moves at the rate of S.

The rule: every factor f of a weight H moves by the same fraction of its scale in a step,

    rate(f) = c · rate(H) · rms(f) / rms(H)        rate(H) = min(1, 64 / d) · the model's rate

c is 2 for Kronecker sums, where a step of S moves the output 0.9 to 1.7 times as far as a step of the dense weight. It
is 1/2 for products of factors (W, U and V; low rank; Monarch), where a step moves the output less far (``phmctl bench
rates``). Both values were chosen by the loss; for products of factors the best rates lie within a factor of two, up to
rank four (docs/lab/translation.md). Tables, dense or not, have the model's rate.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from phmctl.errors import UserError
from phmctl.nn.convert import is_conv1d
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import DENSE, RANK, PHMLinear, StructuredWeight
from phmctl.nn.parametrization import Kronecker
from phmctl.nn.structures import rms
from phmctl.timing import alternate

_TABLES = (nn.Embedding, nn.EmbeddingBag)
_BASE_WIDTH = 64  # inputs of the widest dense map that has the model's rate


def parameter_groups(model: nn.Module, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Return parameter groups for Adam and similar optimisers, with a rate for each factor of each weight.

    Weights of PHM layers, of converted modules and of torch's own layers get the rates of this module; tables, norms
    and biases get `lr`. Weight decay applies to the last factor of a weight only (S, or L of two thin factors), so that
    H decays as fast as a dense weight.

    Args:
        model: a model with its initial weights, whose scales set the rates. Lazy parameters get `lr`.
        lr: rate of tables, norms and biases. A schedule multiplies the ``lr`` of each group.
        weight_decay: weight decay of AdamW. Each group has its own, which overrides the optimiser's argument.

    Raises:
        UserError: `lr` is not a positive number.
    """
    if not 0 < lr < math.inf:
        raise UserError(f"lr = {lr}: the learning rate must be above 0 and finite")
    return groups_by_rate(model, relative_rates(model), lr, weight_decay)


def relative_rates(model: nn.Module) -> dict[str, float]:
    """Return the rate of each trainable parameter as a multiple of the model's rate, by its name."""
    rates: dict[Tensor, float] = {}
    for weight in _weights(model):
        for factor in weight.factors:
            scale = rms(factor)
            relative_scale = scale / weight.scale if weight.scale and scale else 1.0
            rate = weight.gain * weight.rate * relative_scale
            rates.setdefault(factor, float(f"{rate:.3g}"))  # rounded, so that similar rates share a group
    return {name: rates.get(tensor, 1.0) for name, tensor in model.named_parameters() if tensor.requires_grad}


def groups_by_rate(
    model: nn.Module, rates: Mapping[str, float], lr: float, weight_decay: float, *, one_rate: bool = False
) -> list[dict[str, Any]]:
    """Return a parameter group for each pair of a rate and a weight decay (:func:`parameter_groups`).

    Args:
        model: the model.
        rates: rate of each parameter as a multiple of `lr`, by its name.
        lr: the model's rate.
        weight_decay: weight decay of tables, norms, biases and weights H.
        one_rate: every weight H decays at the model's rate; otherwise at the rate of its dense weight.
    """
    decays: dict[Tensor, float] = {}  # of each factor in a step, as a multiple of lr · weight_decay
    for weight in _weights(model):
        decay = 1.0 if one_rate else weight.rate
        for factor in weight.undecayed:
            decays.setdefault(factor, 0.0)
        for factor in weight.factors:
            decays.setdefault(factor, decay)
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = rates[name]
            decay = weight_decay
            if parameter in decays:
                decay *= decays[parameter] / rate  # AdamW multiplies a group's decay by its rate
            group = {"params": [], "lr": lr * rate, "relative": rate, "weight_decay": decay}
            groups.setdefault((rate, decay), group)["params"].append(parameter)
    return list(groups.values())


def dense_rate(fan_in: int) -> float:
    """Return the rate of a dense map of `fan_in` inputs as a multiple of the model's rate."""
    return min(1.0, _BASE_WIDTH / fan_in)


@dataclass(frozen=True)
class _Weight:
    """A weight H and its factors; a dense weight is its only factor. A reparametrized factor is several parameters."""

    scale: float  # root mean square of the entries of H; 0 if the only factor is H
    rate: float  # rate of the dense weight as a multiple of the model's
    gain: float  # c
    factors: Sequence[nn.Parameter]  # of the shape of a factor
    undecayed: Sequence[nn.Parameter] = ()  # of all factors but the last, in any shape


@torch.no_grad()
def _weights(model: nn.Module) -> list[_Weight]:
    """Return the weights of a model, tables first: a map that is tied to a table gets its rate."""
    weights: list[_Weight] = []
    for module in model.modules():
        if isinstance(module, StructuredWeight):
            weights.append(_structured(module))
        elif not hasattr(module, "normalized_shape") and not isinstance(module, parametrize.ParametrizationList):
            named = module.named_parameters(recurse=False)  # the weight of a norm may have several axes
            weights += _dense(module, [parameter for name, parameter in named if "weight" in name])
            weights += _parametrized(module)
    return sorted(weights, key=lambda weight: weight.rate != 1.0)


def _structured(module: StructuredWeight) -> _Weight:
    structure, tensors = module.structure, module.tensors()
    is_table = isinstance(module, PHMEmbedding)
    rate, gain = (1.0, 1.0) if is_table else (dense_rate(module.fan_in), structure.gain)
    return _product(module, tensors, structure.scale(tensors), rate, gain)


def _product(module: nn.Module, tensors: Mapping[str, Tensor], scale: float, rate: float, gain: float) -> _Weight:
    """Return the weight that a module computes from tensors, by the names of the module's attributes."""
    behind = {name: _parameters_behind(module, name) for name in tensors}
    factors = [parameter for name in tensors for parameter in behind[name] if parameter.shape == tensors[name].shape]
    return _Weight(scale, rate, gain, factors, [parameter for name in [*tensors][:-1] for parameter in behind[name]])


def _parameters_behind(module: nn.Module, name: str) -> list[nn.Parameter]:
    """Return the parameter of this name, or those from which a parametrization, a norm or a pruning computes it."""
    parameter, chains = module._parameters.get(name), getattr(module, "parametrizations", {})
    if parameter is not None:
        return [parameter]
    if name in chains:
        return list(chains[name].parameters())
    return [parameter for key, parameter in module.named_parameters(recurse=False) if key.startswith(f"{name}_")]


def _dense(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[_Weight]:
    """Return a weight for each parameter of at least two axes, if its shape is known."""
    matrices = [parameter for parameter in parameters if not is_lazy(parameter) and parameter.dim() > 1]
    return [_Weight(0.0, _rate(module, parameter), 1.0, [parameter]) for parameter in matrices]


def _parametrized(module: nn.Module) -> list[_Weight]:
    """Return the weights that parametrizations of a module compute, from factors (Kronecker) or from one matrix."""
    weights: list[_Weight] = []
    parametrizations: Any = getattr(module, "parametrizations", nn.ModuleDict())
    for name, chain in parametrizations.items():
        H = getattr(module, name)
        if isinstance(chain[0], Kronecker):
            tensors = {f"original{index}": getattr(chain, f"original{index}") for index in range(chain.ntensors)}
            gain = 1.0 if isinstance(module, _TABLES) else chain[0].structure.gain
            weights.append(_product(chain, tensors, rms(H), _rate(module, H), gain))
        else:  # one of torch's, such as spectral_norm
            weights += _dense(module, [parameter for parameter in chain.parameters() if parameter.shape == H.shape])
    return weights


def _rate(module: nn.Module, weight: Tensor) -> float:
    """Return the rate of a dense weight (outputs, inputs, ...); further axes are a convolution's kernel."""
    if isinstance(module, _TABLES):
        return 1.0
    inputs_first = is_conv1d(module) or getattr(module, "transposed", False)  # weight (inputs, outputs, ...)
    inputs = len(weight) // getattr(module, "groups", 1) if inputs_first else weight.shape[1]
    return dense_rate(inputs * math.prod(weight.shape[2:]))


def tune(model: nn.Module, tokens: int = 4096) -> dict[str, str]:
    """Set the faster execution, ``dense`` or ``rank``, of each PHM map, by timing forward and backward passes.

    Maps of equal shape, dtype and device are timed once. Call it within the training's ``torch.autocast``, so that it
    times that precision. Maps without factors (a learned rule held as A) are skipped.

    Args:
        model: any module with :class:`~phmctl.PHMLinear` maps, on its device.
        tokens: rows of a batch in training.

    Returns:
        the chosen executions by the names of the maps.
    """
    fastest: dict[tuple[object, ...], str] = {}
    executions = {}
    for name, layer in model.named_modules():
        if isinstance(layer, PHMLinear) and (factors := layer.factors) is not None:
            shape = layer.in_features, layer.out_features, layer.n, len(factors.V), layer.S.dtype, layer.S.device
            if shape not in fastest:
                fastest[shape] = _faster_execution(layer, tokens)
            layer.execution = fastest[shape]
            executions[name] = fastest[shape]
    return executions


def _faster_execution(layer: PHMLinear, tokens: int) -> str:
    leaves = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    generator = torch.Generator(layer.S.device).manual_seed(0)
    x = torch.randn(tokens, layer.in_features, device=layer.S.device, dtype=layer.S.dtype, generator=generator)
    x.requires_grad_()
    gradient = x.new_ones(tokens, layer.out_features)

    def step(execution: str) -> None:
        layer.execution = execution
        torch.clear_autocast_cache()  # as in training, where autocast casts the weights again in each step
        with torch.enable_grad():
            torch.autograd.grad(layer(x), [x, *leaves], gradient)

    calls = {name: partial(step, name) for name in (DENSE, RANK)}
    seconds = alternate(calls, rounds=5, seconds=0.02, device=layer.S.device)
    return min(seconds, key=lambda name: median(seconds[name]))
