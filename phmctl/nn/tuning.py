"""What fits the structure of a model's weights: learning rates for each factor, and the faster execution of each map.

Under Adam each number of a tensor moves by about the learning rate in a step, whatever the tensor's scale is. A dense
weight (k, d) wants a rate that falls with d (muP: Yang et al. 2021, "Tensor Programs V", table 3). A weight that is
made of factors wants a rate for each of them (Qiu et al. 2024, "Compute Better Spent"): entries of A are about √(d/n)
times as large as those of S, and at one rate A hardly moves.

The rule here: in a step every factor f moves by the same fraction of its scale, ``rate(f) = c · rate(H) · rms(f) /
rms(H)``: Adam on factors that are all scaled to the entries of the weight H. The rate of a dense weight is ``64 / d``
of the model's rate, and never more than that. c is 2 for Kronecker sums, with which a step of S moves the output 0.9 to
1.7 times as far as one of the dense weight, and 1/2 for products of factors (W, U and V; low rank; Monarch), which move
it less far (``phmctl bench rates``): both were chosen by the loss, and the best rates lie within a factor of two, of
factors of a rank up to four (docs/results.md). The rate of a table, dense or of factors, is the model's.
"""

import math
from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from phmctl.errors import UserError
from phmctl.nn.convert import Kronecker, is_conv1d
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import DENSE, EXECUTIONS, RANK, KroneckerWeight, PHMLinear, TwoFactorLinear
from phmctl.timing import alternate

_WIDTH = 64  # d of the widest dense map that has the model's own rate
_GAIN = {"rule": 2.0, "factors": 0.5}  # c: of A and S; of W, U, V and S, and of two thin maps


def parameter_groups(model: nn.Module, lr: float, weight_decay: float = 0.0) -> list[dict[str, Any]]:
    """Return parameter groups for Adam and its like in torch, with a rate that fits for each factor of each map.

    Weights of PHM layers, of converted modules and of torch's own layers get the rates of this module; tables, norms
    and biases get `lr`. Of a weight's factors one alone decays (S, of two thin maps the second), so that H decays as
    the dense weight does and not faster.

    Args:
        model: its weights as they are at the start of the training: their scales count.
        lr: the rate of tables, norms and biases. A schedule multiplies the ``lr`` of each group.
        weight_decay: of AdamW. Each group has its own, so that the optimiser's argument of this name has no effect.

    Raises:
        UserError: `lr` is no positive number.
    """
    if not 0 < lr < math.inf:
        raise UserError(f"lr {lr} is no rate; give a number above 0")
    return grouped(model, relative_rates(model), lr, weight_decay)


def relative_rates(model: nn.Module) -> dict[str, float]:
    """Return the rate of each trainable parameter as a multiple of the model's rate, by its name."""
    rates: dict[Tensor, float] = {}
    for weight in _weights(model):
        for factor in weight.factors:
            share = _rms(factor) / weight.scale if weight.scale and _rms(factor) else 1.0
            rates.setdefault(factor, float(f"{weight.gain * weight.rate * share:.3g}"))
    return {name: rates.get(each, 1.0) for name, each in model.named_parameters() if each.requires_grad}


def grouped(
    model: nn.Module, rates: Mapping[str, float], lr: float, weight_decay: float, *, one: bool = False
) -> list[dict[str, Any]]:
    """Return a parameter group for each rate and decay; :func:`parameter_groups` says what decays.

    `one`: all weights have one rate, dense maps too.
    """
    decays: dict[Tensor, float] = {}  # AdamW multiplies by the group's rate
    for weight in _weights(model):
        for factor in weight.factors:
            decays.setdefault(factor, (1.0 if one else weight.rate) if factor is weight.factors[-1] else 0.0)
    groups: dict[tuple[float, float], dict[str, Any]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            rate = rates[name]
            decay = weight_decay * (decays[parameter] / rate if parameter in decays else 1.0)
            group = {"params": [], "lr": lr * rate, "relative": rate, "weight_decay": decay}
            groups.setdefault((rate, decay), group)["params"].append(parameter)
    return list(groups.values())


def dense_rate(fan_in: int) -> float:
    """Return the rate of a dense map of d inputs as a multiple of the model's rate."""
    return min(1.0, _WIDTH / fan_in)


class _Weight(NamedTuple):
    scale: float  # root mean square of the entries of H (0: the factor is H); of a Kronecker sum √n · rms(A) · rms(S)
    rate: float  # of the dense weight, as a multiple of the model's
    gain: float  # c
    factors: Sequence[nn.Parameter]  # the last one decays


@torch.no_grad()
def _weights(model: nn.Module) -> list[_Weight]:
    """Return the weights H of a model, tables first: a map that is tied to one has its rate."""
    found = []
    for module in model.modules():
        if isinstance(module, KroneckerWeight):
            factors = [part for name in ("weight", *"AWUVS") if (part := module._parameters.get(name)) is not None]
            scale = _rms(module.weight) if module.n == 1 else math.sqrt(module.n) * _rms(module.A) * _rms(module.S)
            table = isinstance(module, PHMEmbedding)
            rate = 1.0 if table else dense_rate(module.in_features)
            gain = 1.0 if table or module.n == 1 else _GAIN["factors" if module.holds_factors else "rule"]
            found.append(_Weight(scale, rate, gain, factors))
        elif isinstance(module, TwoFactorLinear):
            rate, factors = dense_rate(module.in_features), [module.R, module.L]
            found.append(_Weight(_rms(module.weight), rate, _GAIN["factors"], factors))
        elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
            sums = any(isinstance(part, Kronecker) for part in module.modules())
            found.append(_Weight(_rms(module.weight) if sums else 0.0, 1, 1, list(module.parameters())))
        elif not hasattr(module, "normalized_shape"):  # a norm's weight may have several axes
            own = [part for name, part in module.named_parameters(recurse=False) if "weight" in name]
            found += [_Weight(0.0, _rate(module, part), 1, [part]) for part in own if part.dim() > 1]
            parametrized: Any = getattr(module, "parametrizations", nn.ModuleDict())
            for name, chain in parametrized.items():
                H = getattr(module, name)
                if isinstance(chain[0], Kronecker):
                    found.append(_Weight(_rms(H), _rate(module, H), _GAIN["rule"], list(chain.parameters())))
                else:  # torch's own, such as spectral_norm
                    own = [part for part in chain.parameters() if part.shape == H.shape and H.dim() > 1]
                    found += [_Weight(0.0, _rate(module, part), 1, [part]) for part in own]
    return sorted(found, key=lambda weight: weight.rate != 1.0)


def _rate(module: nn.Module, weight: Tensor) -> float:
    turned = is_conv1d(module) or getattr(module, "transposed", False)  # (inputs, outputs, ...)
    inputs = len(weight) // getattr(module, "groups", 1) if turned else weight.shape[1]
    return dense_rate(inputs * math.prod(weight.shape[2:]))


def _rms(tensor: Tensor) -> float:
    return tensor.detach().double().square().mean().sqrt().item()


def tune(model: nn.Module, tokens: int = 4096) -> dict[str, str]:
    """Time ``dense`` against ``rank`` once for each shape of map, forward and backward, and set the faster one.

    Within ``torch.autocast`` they are timed in its precision, which is to be that of the training. Maps without factors
    (a learned rule held as A) have nothing to choose and are left out.

    Args:
        model: any module with :class:`~phmctl.PHMLinear` maps, on its device.
        tokens: rows of a batch in training.

    Returns:
        the execution of each map by its name in the model; :func:`set_executions` sets the same again.
    """
    fastest: dict[tuple[object, ...], str] = {}
    chosen = {}
    for name, layer in model.named_modules():
        if isinstance(layer, PHMLinear) and layer.factors is not None:
            shape = layer.in_features, layer.out_features, layer.n, len(layer.V), layer.S.dtype, layer.S.device
            if shape not in fastest:
                fastest[shape] = _fastest(layer, tokens)
            layer.execution = chosen[name] = fastest[shape]
    return chosen


def set_executions(model: nn.Module, executions: Mapping[str, str]) -> None:
    """Set the execution of maps by their names, as :func:`tune` returned them.

    Raises:
        UserError: the model has no PHM map of a name that can be applied so.
    """
    modules = dict(model.named_modules(remove_duplicate=False))
    for name, execution in executions.items():
        layer = modules.get(name)
        if not isinstance(layer, PHMLinear) or execution not in (EXECUTIONS if layer.factors else (DENSE,)):
            raise UserError(f"the model has no PHM map {name!r} that execution {execution!r} is possible for")
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
        torch.clear_autocast_cache()  # a training casts the weights anew in each step
        with torch.enable_grad():
            torch.autograd.grad(layer(x), [x, *leaves], gradient)

    calls = {name: partial(step, name) for name in (DENSE, RANK)}
    seconds = alternate(calls, rounds=5, seconds=0.02, device=layer.S.device)
    return min(seconds, key=lambda name: median(seconds[name]))
