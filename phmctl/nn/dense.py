"""From a model of PHM maps to dense ones: for validation, decoding, serving, exports and quantisation."""

import copy
from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from phmctl.algebra.rank_product import block_sums, rank_linear
from phmctl.nn.convert import refuse_to_save, remove
from phmctl.nn.embedding import NarrowEmbedding, PHMEmbedding
from phmctl.nn.linear import RANK, PHMLinear
from phmctl.nn.two_factors import TwoFactorLinear


def to_dense(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Replace every PHM map of a model by the dense layer of the same function, to rounding.

    ``PHMLinear`` becomes ``nn.Linear``, ``PHMEmbedding`` becomes ``nn.Embedding``, and what :func:`phmctl.convert`
    parametrized has a plain weight again. A ``PHMLSTM`` stays what its model calls, with dense maps;
    ``PHMLSTM.to_dense`` makes an ``nn.LSTM`` of it. What is shared stays shared: a module with several names, a table
    that is the generator's weight too, a bias. What is frozen stays frozen.

    Args:
        model: any module; it may be such a layer itself.
        inplace: change `model` itself, where a copy would be too large. A root that is such a layer cannot be
            replaced in place: use the result.

    Returns:
        the model, or its copy, in the same mode; ``nn.Linear`` for a ``PHMLinear``.
    """
    return _replaced(model, lambda module: None, inplace=inplace)


def freeze(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Replace the PHM maps of a model as :func:`to_dense` does, but let maps of execution ``rank`` keep their blocks.

    Their blocks T are computed once, as buffers: these maps do not learn.

    Args:
        model: any module.
        inplace: change `model` itself, as of :func:`to_dense`.

    Returns:
        the model, or its copy, in the same mode.
    """

    def blocks(module: nn.Module) -> nn.Module | None:
        by_rank = isinstance(module, PHMLinear) and module.n > 1 and module.execution == RANK
        return BlockLinear(cast("PHMLinear", module)) if by_rank else None

    return _replaced(model, blocks, inplace=inplace)


class BlockLinear(nn.Module):
    """A PHM map that answers by R block products: :func:`freeze` makes it.

    Attributes:
        T: (R, k/n, d/n), the blocks.
        U: (n, R).
        V: (R, n).
        bias: (k,) or None.
    """

    T: Tensor
    U: Tensor
    V: Tensor
    bias: Tensor | None

    @torch.no_grad()
    def __init__(self, layer: PHMLinear) -> None:
        super().__init__()
        W, U, V = cast("tuple[Tensor, Tensor, Tensor]", layer.factors)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        for name, part in (("T", block_sums(W, layer.S)), ("U", U), ("V", V), ("bias", layer.bias)):
            self.register_buffer(name, None if part is None else part.detach().clone())
        self.train(layer.training)

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis. (..., d) -> (..., k)."""
        return rank_linear(x, self.T, self.U, self.V, self.bias)


def _replaced(model: nn.Module, make: Callable[[nn.Module], nn.Module | None], *, inplace: bool) -> nn.Module:
    """Replace each PHM map by what `make` gives, or by its dense layer where that is None."""
    model = model if inplace else copy.deepcopy(model)
    replaced: dict[int, nn.Module] = {}
    weights: dict[tuple[int, ...], nn.Parameter] = {}
    if model.__dict__.get("save_pretrained") is refuse_to_save:
        object.__delattr__(model, "save_pretrained")
    for module in list(model.modules()):
        if isinstance(module, (PHMLinear, PHMEmbedding, NarrowEmbedding, TwoFactorLinear)):
            replaced[id(module)] = make(module) or _dense(module, weights)
        elif is_parametrized(module):
            remove(module, weights)
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # not named_children(), which leaves out repetitions
            if id(child) in replaced:
                setattr(parent, name, replaced[id(child)])
    return replaced.get(id(model), model)


def _dense(
    module: PHMLinear | PHMEmbedding | NarrowEmbedding | TwoFactorLinear, weights: dict[tuple[int, ...], nn.Parameter]
) -> nn.Module:
    """Return a module's dense layer; maps made of the same tensors get the same weight."""
    dense = module.to_dense()
    weight = cast("nn.Parameter", dense.weight)
    plain, bias = (module._parameters.get(name) for name in ("weight", "bias"))
    if plain is not None:  # n = 1
        plain.data.copy_(weight)  # a table's row of padding is zero there
        dense.weight = plain
    else:
        sources = [part for name, part in module.named_parameters() if "bias" not in name.split(".")]
        weight.requires_grad_(any(part.requires_grad for part in sources))
        same = weights.setdefault(tuple(map(id, sources)), weight)
        if same.is_meta or torch.equal(same, weight):  # not the same tensors by another parametrization
            dense.weight = same
    if bias is not None:
        dense.bias = bias
    return dense
