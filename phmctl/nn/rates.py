"""Learning rates for each factor of a weight.

Adam moves each entry of a tensor by about the learning rate in a step, at any scale of the entry. A dense weight
(k, d) needs a rate that falls with d (muP: Yang et al. 2021, "Tensor Programs V", table 3). A weight that is a product
of factors needs a rate for each factor (Qiu et al. 2024, "Compute Better Spent"): entries of A are about √(d/n) times
as large as entries of S, so A hardly moves at the rate of S.

The rule: every factor f of a weight H moves by the same fraction of its scale in a step,

    rate(f) = c · rate(H) · rms(f) / rms(H)        rate(H) = min(1, 64 / d) · the model's rate

c is 2 for Kronecker sums, where a step of S moves the output 0.9 to 1.7 times as far as a step of the dense weight. It
is 1/2 for products of factors (W, U and V; low rank), where a step moves the output less far. Both values were chosen
by the loss. For products of factors the best rates lie within a factor of two, up to rank four
(docs/lab/translation.md). Tables, dense or not, have the model's rate.

A step of random signs moves H = Σ A ⊗ S √8 times as far as a dense weight: A and S each move H c = 2 times as far, in
independent directions. Steps through the gates of an LSTM: docs/lab/tasks.md, sentence pairs.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from phmctl.errors import UserError
from phmctl.nn.convert import is_conv1d
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import StructuredWeight
from phmctl.nn.parametrization import Kronecker
from phmctl.nn.structures import rms

_TABLES = (nn.Embedding, nn.EmbeddingBag)
_BASE_WIDTH = 64  # inputs of the widest dense map that has the model's rate


def parameter_groups(model: nn.Module, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Return parameter groups for Adam and similar optimisers, with a rate for each factor of each weight.

    Weights of PHM layers, of converted modules and of torch's own layers get the rates of this module. Tables, norms
    and biases get `lr`. Weight decay applies to the last factor of a weight only (S, or L of L R), so that
    H decays as fast as a dense weight.

    The groups and the order of their parameters depend on the model's layers only, not on the weights, so that the
    state of an optimiser fits the groups of any model that is made in the same way. The factors of one name and shape
    in layers of one class and one initialisation are a group. The rates of PHM layers follow from the initial scales.
    A group of converted weights has the mean of the rates that the measured scales give.

    Args:
        model: a model. Lazy parameters get `lr`.
        lr: rate of tables, norms and biases. A schedule multiplies the ``lr`` of each group.
        weight_decay: weight decay of AdamW. Each group has a value, which overrides the optimiser's argument.

    Raises:
        UserError: `lr` is not above 0, `weight_decay` is negative, or a converted weight is on the meta device.
    """
    if not (0 < lr < math.inf and 0 <= weight_decay < math.inf):
        raise UserError(f"lr = {lr}, weight_decay = {weight_decay}: expected an lr above 0, a decay of at least 0")
    keys: dict[Tensor, tuple[object, ...]] = {}
    rates: dict[Tensor, float] = {}
    for weight in _weights(model, measure=False):
        for name, factor in weight.factors:
            shape = factor.shape if weight.kind else ()  # dense weights of one rate are a group
            keys.setdefault(factor, (weight.kind, name, shape, weight.gain, weight.rate))
            rates.setdefault(factor, weight.rate_of(name))
    by_key: dict[tuple[object, ...], list[float]] = {}
    for parameter, key in keys.items():
        by_key.setdefault(key, []).append(rates[parameter])
    mean = {parameter: _rounded(fmean(by_key[key])) for parameter, key in keys.items()}
    by_name = {name: mean.get(parameter, 1.0) for name, parameter in model.named_parameters()}
    return groups_by_rate(model, by_name, lr, weight_decay, keys=keys)


def relative_rates(model: nn.Module) -> dict[str, float]:
    """Return the rate of each trainable parameter as a multiple of the model's rate, by name.

    The scales of all weights are measured, so that two weights of one shape have slightly different rates.
    """
    rates: dict[Tensor, float] = {}
    for weight in _weights(model, measure=True):
        for name, factor in weight.factors:
            rates.setdefault(factor, _rounded(weight.rate_of(name)))
    return {name: rates.get(tensor, 1.0) for name, tensor in model.named_parameters() if tensor.requires_grad}


def groups_by_rate(
    model: nn.Module,
    rates: Mapping[str, float],
    lr: float,
    weight_decay: float,
    *,
    keys: Mapping[Tensor, object] | None = None,
    one_rate: bool = False,
) -> list[dict[str, Any]]:
    """Return a parameter group for each pair of a rate and a weight decay.

    Args:
        model: the model.
        rates: rate of each parameter as a multiple of `lr`, by name.
        lr: the model's rate.
        weight_decay: weight decay of tables, norms, biases and weights H.
        keys: a group for each key instead of each rate. Parameters with one key have one rate.
        one_rate: every weight H decays at the model's rate, otherwise at the rate of the dense weight.
    """
    decays = _decays(_weights(model, measure=False), one_rate=one_rate)
    groups: dict[tuple[object, ...], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate, decay = rates[name], weight_decay
            if parameter in decays:
                decay *= decays[parameter] / rate  # AdamW multiplies the decay of a group by the group's rate
            key = (rate, decay) if keys is None else (keys.get(parameter), decays.get(parameter))
            group = {"params": [], "lr": lr * rate, "relative": rate, "weight_decay": decay}
            groups.setdefault(key, group)["params"].append(parameter)
    return list(groups.values())


def _rounded(rate: float) -> float:
    return float(f"{rate:.3g}")  # so that similar rates share a group


def dense_rate(fan_in: int) -> float:
    """Return the rate of a dense map of `fan_in` inputs as a multiple of the model's rate."""
    return min(1.0, _BASE_WIDTH / fan_in)


@dataclass(frozen=True)
class _Weight:
    """A weight H and the factors. A dense weight is the only factor. A reparametrized factor is several parameters."""

    kind: tuple[object, ...]  # class and initial variance of a layer whose weight has factors, empty for others
    rate: float  # rate of the dense weight as a multiple of the model's
    gain: float  # c
    scales: Mapping[str, float]  # root mean square of each factor as a multiple of that of H
    factors: Sequence[tuple[str, nn.Parameter]]  # parameters of the shape of a factor, with its name
    undecayed: Sequence[nn.Parameter] = ()  # parameters of all factors but the last, in any shape

    def rate_of(self, factor: str) -> float:
        return self.gain * self.rate * self.scales[factor]


def _decays(weights: Sequence[_Weight], *, one_rate: bool = False) -> dict[Tensor, float]:
    """Return how fast each factor decays in a step, as a multiple of lr · weight_decay."""
    decays: dict[Tensor, float] = {}
    for weight in weights:
        for parameter in weight.undecayed:
            decays.setdefault(parameter, 0.0)
        for _, parameter in weight.factors:
            decays.setdefault(parameter, 1.0 if one_rate else weight.rate)
    return decays


@torch.no_grad()
def _weights(model: nn.Module, *, measure: bool) -> list[_Weight]:
    """Return the weights of a model, tables first: a map that is tied to a table gets the table's rate.

    Without `measure`, the scales of PHM layers are the initial ones.
    """
    weights: list[_Weight] = []
    for module in model.modules():
        if isinstance(module, StructuredWeight):
            structure, tensors = module.structure, module.tensors()
            if measure:
                scales = _measured_scales(tensors, structure.scale(tensors))
            else:
                shapes = {name: tensor.shape for name, tensor in tensors.items()}
                scales = structure.initial_scales(module.variance, shapes)
            is_table = isinstance(module, PHMEmbedding)
            rate, gain = (1.0, 1.0) if is_table else (dense_rate(module.fan_in), structure.gain)
            weights.append(_product(module, tensors, (type(module).__name__, module.variance), rate, gain, scales))
            continue
        if hasattr(module, "normalized_shape") or isinstance(module, parametrize.ParametrizationList):
            continue  # the weight of a norm may have several axes
        parameters = [parameter for name, parameter in module.named_parameters(recurse=False) if "weight" in name]
        weights += _dense(module, parameters)
        parametrizations: Any = getattr(module, "parametrizations", nn.ModuleDict())
        for name, chain in parametrizations.items():
            H = getattr(module, name)
            if isinstance(chain[0], Kronecker):
                weights.append(_converted(module, chain, H))
            else:  # one of torch's, such as spectral_norm
                weights += _dense(module, [parameter for parameter in chain.parameters() if parameter.shape == H.shape])
    return sorted(weights, key=lambda weight: weight.rate != 1.0)


def _converted(module: nn.Module, chain: Any, H: Tensor) -> _Weight:
    """Return the weight of a converted H."""
    kronecker: Kronecker = chain[0]
    tensors = {f"original{index}": getattr(chain, f"original{index}") for index in range(len(kronecker.names))}
    gain = 1.0 if isinstance(module, _TABLES) else kronecker.structure.gain
    scales = _measured_scales(tensors, rms(H))
    return _product(chain, tensors, (type(chain).__name__,), _rate(module, H), gain, scales)


def _measured_scales(tensors: Mapping[str, Tensor], scale: float) -> dict[str, float]:
    """Return the scale of each factor as a multiple of the scale of H, or 1 for a factor that is zero."""
    return {name: (rms(tensor) / scale if scale else 0.0) or 1.0 for name, tensor in tensors.items()}


def _product(
    module: nn.Module,
    tensors: Mapping[str, Tensor],
    kind: tuple[object, ...],
    rate: float,
    gain: float,
    scales: Mapping[str, float],
) -> _Weight:
    """Return the weight that a module computes from tensors, by the names of the module's attributes."""
    behind = {name: parameters_behind(module, name) for name in tensors}
    factors = [(name, part) for name in tensors for part in behind[name] if part.shape == tensors[name].shape]
    undecayed = [parameter for name in [*tensors][:-1] for parameter in behind[name]]
    return _Weight(kind, rate, gain, scales, factors, undecayed)


def parameters_behind(module: nn.Module, name: str) -> list[nn.Parameter]:
    """Return the parameter of this name, or those from which a parametrization, a norm or a pruning computes it."""
    parameter, chains = module._parameters.get(name), getattr(module, "parametrizations", {})
    if parameter is not None:
        return [parameter]
    if name in chains:
        return list(chains[name].parameters())
    return [parameter for key, parameter in module.named_parameters(recurse=False) if key.startswith(f"{name}_")]


def _dense(module: nn.Module, parameters: Sequence[nn.Parameter]) -> list[_Weight]:
    """Return a weight for each parameter of at least two axes whose shape is known."""
    matrices = [parameter for parameter in parameters if not is_lazy(parameter) and parameter.dim() > 1]
    return [_Weight((), _rate(module, weight), 1.0, {"weight": 1.0}, [("weight", weight)]) for weight in matrices]


def _rate(module: nn.Module, weight: Tensor) -> float:
    """Return the rate of a dense weight (outputs, inputs, ...). Further axes are a convolution's kernel."""
    if isinstance(module, _TABLES):
        return 1.0
    inputs_first = is_conv1d(module) or getattr(module, "transposed", False)  # weight (inputs, outputs, ...)
    inputs = len(weight) // getattr(module, "groups", 1) if inputs_first else weight.shape[1]
    return dense_rate(inputs * math.prod(weight.shape[2:]))
