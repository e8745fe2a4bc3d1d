"""From a model of PHM maps back to torch's own layers, for whatever knows only those: quantisation, export, engines."""

import copy
from typing import cast

import torch
from torch import nn

from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.kronecker_weight import learns, sources_of
from phmctl.nn.linear import PHMLinear
from phmctl.nn.lstm import PHMLSTM
from phmctl.nn.multihead import PHMMultiheadAttention
from phmctl.nn.two_factors import TwoFactorLinear


def to_dense(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Replace every PHM map of a model by the dense layer of the same function, to rounding.

    ``PHMLinear`` becomes ``nn.Linear``, ``PHMEmbedding`` becomes ``nn.Embedding``; what :func:`phmctl.convert` made of
    another layer becomes that again. Any other ``PHMLSTM`` stays what its model calls, with dense maps;
    ``PHMLSTM.to_dense`` makes an ``nn.LSTM`` of it. What was one thing stays one: a module that stands in two places,
    a table that is the generator's weight too, a shared bias. What was frozen stays frozen.

    Args:
        model: any module; it may be such a layer itself.
        inplace: change `model` itself, where a copy would be too large. A root that is such a layer cannot be
            replaced in place: use what is returned.

    Returns:
        the model, or its copy, in the same mode; ``nn.Linear`` for a ``PHMLinear``.
    """
    model = model if inplace else copy.deepcopy(model)
    replaced: dict[int, nn.Module] = {}
    weights: dict[tuple[int, ...], nn.Parameter] = {}
    for module in list(model.modules()):
        if isinstance(module, PHMMultiheadAttention) or (isinstance(module, PHMLSTM) and module.dense_type):
            replaced[id(module)] = module.to_dense()
        elif isinstance(module, (PHMLinear, PHMEmbedding, TwoFactorLinear)):
            replaced[id(module)] = _as_found(_dense(module, weights), getattr(module, "dense_type", None))
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # not named_children(), which leaves out repetitions
            if id(child) in replaced:
                setattr(parent, name, replaced[id(child)])
    return replaced.get(id(model), model)


def _dense(
    module: PHMLinear | PHMEmbedding | TwoFactorLinear, weights: dict[tuple[int, ...], nn.Parameter]
) -> nn.Module:
    """Return a module's dense layer; maps made of the same tensors get the same weight."""
    dense = module.to_dense()
    plain, bias = (module._parameters.get(name) for name in ("weight", "bias"))
    weight = cast("nn.Parameter", dense.weight)
    if plain is not None:  # n = 1
        plain.data.copy_(weight)  # a table's row of padding is zero there
        dense.weight = plain
    else:
        weight.requires_grad_(learns(module))
        same = weights.setdefault(tuple(map(id, sources_of(module) or [weight])), weight)
        if same.is_meta or torch.equal(same, weight):  # not the same tensors by another parametrization
            dense.weight = same
    if bias is not None:
        dense.bias = bias
    return dense


def _as_found(dense: nn.Module, kind: type[nn.Module] | None) -> nn.Module:
    """Return a linear map as the kind of layer that ``phmctl.convert`` replaced: Conv1D's weight is (d, k)."""
    if kind is None or not isinstance(dense, nn.Linear):
        return dense
    with torch.device("meta"):  # no random numbers are drawn
        found = kind(dense.out_features, dense.in_features).train(dense.training)
    weight = dense.weight.detach().t().contiguous()
    found.weight, found.bias = nn.Parameter(weight, dense.weight.requires_grad), dense.bias
    return found
