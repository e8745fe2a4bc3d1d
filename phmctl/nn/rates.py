"""Learning rates that fit the structure of a model's weights.

Under Adam each number of a tensor moves by about the learning rate in a step, whatever the tensor's scale is. A dense
weight (k, d) wants a rate that falls with d (muP: Yang et al. 2021, "Tensor Programs V", table 3). A weight that is
made of factors wants a rate for each of them (Qiu et al. 2024, "Compute Better Spent"): entries of A are about √(d/n)
times as large as those of S, and at one rate A hardly moves.

The rule here: in a step every factor f moves by the same fraction of its scale as the dense weight H that it makes,
``rate(f) / rms(f) = rate(H) / rms(H)``. That is Adam on factors that are all scaled to the entries of H. The rate of H
is ``128 / d`` of the model's rate, and never more than that; the rate of a table, dense or of factors, is the model's.
"""

import math
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from phmctl.errors import UserError
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.linear import KroneckerWeight
from phmctl.nn.two_factors import TwoFactorLinear

WIDTH = 128  # d of the widest map that takes the model's own rate


def parameter_groups(model: nn.Module, lr: float) -> list[dict[str, object]]:
    """Return parameter groups for any of torch's optimisers, with a rate that fits for each factor of each map.

    Weights of PHM layers, of converted modules and of torch's own layers get the rates of this module; tables, norms
    and biases get `lr`. Learned rules get no weight decay: H would decay twice as fast as the dense weight.

    Args:
        model: its weights as they are at the start of the training: their scales count.
        lr: the rate of tables, norms and biases. A schedule multiplies the ``lr`` of each group.

    Raises:
        UserError: `lr` is not above zero.
    """
    if not lr > 0:
        raise UserError(f"lr = {lr} must be above zero")
    return grouped(model, relative_rates(model), lr)


def relative_rates(model: nn.Module) -> dict[str, float]:
    """Return the rate of each trainable parameter as a multiple of the model's rate, by its name."""
    rates: dict[Tensor, float] = {}
    weights = sorted(_weights(model), key=lambda weight: weight[1] is not None)  # a tied weight is a table
    for scale, fan_in, factors in weights:
        own = 1.0 if fan_in is None else min(1.0, WIDTH / fan_in)
        for factor in factors:
            share = _rms(factor) / scale if scale and _rms(factor) else 1.0
            rates.setdefault(factor, float(f"{own * share:.3g}"))
    return {name: rates.get(each, 1.0) for name, each in model.named_parameters() if each.requires_grad}


def grouped(model: nn.Module, rates: Mapping[str, float], lr: float) -> list[dict[str, object]]:
    """Return a parameter group for each rate, without weight decay for learned rules."""
    rules, groups = set(learned_rules(model)), dict[tuple[float, bool], dict[str, object]]()
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        rate, is_rule = rates[name], parameter in rules
        group = groups.setdefault((rate, is_rule), {"params": [], "lr": lr * rate, "relative": rate})
        group["params"].append(parameter)  # type: ignore[attr-defined]
        if is_rule:
            group["weight_decay"] = 0.0
    return list(groups.values())


def learned_rules(model: nn.Module) -> Iterator[nn.Parameter]:
    """Yield the learned rules of a model's layers, or the factors of rules."""
    for module in model.modules():
        if isinstance(module, KroneckerWeight):
            yield from (part for name in "AWUV" if (part := module._parameters.get(name)) is not None)
        elif parametrize.is_parametrized(module):
            for chain in module.parametrizations.values():  # type: ignore[operator]
                yield from list(chain.parameters())[:-1]  # A and S, or S alone


@torch.no_grad()
def _weights(model: nn.Module) -> Iterator[tuple[float, int | None, Iterable[nn.Parameter]]]:
    """Yield of each weight H of a model its scale, its fan-in d, or None of a table, and the parameters that make it.

    The scale is the root mean square of the entries of H; of a Kronecker sum √n · rms(A) · rms(S).
    """
    for module in model.modules():
        if isinstance(module, KroneckerWeight):
            factors = [part for name in ("weight", *"ASWUV") if (part := module._parameters.get(name)) is not None]
            scale = _rms(module.weight) if module.n == 1 else _kronecker_scale(module.A, module.S)
            yield scale, None if isinstance(module, PHMEmbedding) else module.in_features, factors
        elif isinstance(module, TwoFactorLinear):
            yield _rms(module.weight), module.in_features, (module.R, module.L)
        elif isinstance(module, nn.Embedding):
            yield _rms(module.weight), None, list(module.parameters())
        else:
            own = module.named_parameters(recurse=False)
            yield from ((_rms(w), w.shape[1], [w]) for name, w in own if "weight" in name and w.dim() == 2)
            if parametrize.is_parametrized(module):
                for name, chain in module.parametrizations.items():  # type: ignore[union-attr, operator]
                    H = getattr(module, name)
                    yield _rms(H), H.shape[-1], list(chain.parameters())


def _kronecker_scale(A: Tensor, S: Tensor) -> float:
    return math.sqrt(len(A)) * _rms(A) * _rms(S)


def _rms(tensor: Tensor) -> float:
    return tensor.detach().double().square().mean().sqrt().item()
