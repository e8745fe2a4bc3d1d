"""A and S as a parametrization of ``torch.nn.utils.parametrize``, and the removal."""

import operator
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrize

from phmctl.algebra.dimension import LEARNED
from phmctl.algebra.kronecker import check_algebra
from phmctl.algebra.modes import without_autocast
from phmctl.errors import DimensionError, UserError
from phmctl.nn.structures import KroneckerSum, Tensors, computed, leaf_of


class Kronecker(nn.Module):
    """A torch parametrization of a weight as ``Σᵢ kron(A[i], S[i])``.

    ``parametrize.register_parametrization(module, "weight", Kronecker(4))`` replaces a weight (k, d), or (k, d,
    *kernel), by the nearest A (n, n, n) and S (n, k/n, d/n, *kernel). Under a fixed algebra S is the only parameter.
    With `parts` the weight is a stack of equal parts, each with a rule: A (parts, n, n, n), S (parts, n,
    k/(parts·n), d/n).
    ``parametrize.cached()`` keeps H within a scope.

    Args:
        n: the PHM hyperparameter.
        algebra: ``phm``, or a fixed algebra of dimension n, whose S is found by least squares.
        parts: number of maps that the weight stacks: 4 for an LSTM, 3 for a GRU.
        groups: the groups of a convolution. They share the rule, and n divides the channels of each.
        transposed: the weight is (d, k, ...), as in ``nn.ConvTranspose2d``.
        zero_row: a row of H that is zero, such as the padding row of a table.
        rows: k, if n does not divide it. A and S then make a weight with more rows, and H is the first k of them.

    Raises:
        DimensionError: n is not the algebra's dimension or, at registration, does not divide the weight.
        UserError: unknown algebra.
    """

    # Patterns of the names of tied tensors, for save_pretrained of transformers, which keeps one of the names.
    _tied_weights_keys: ClassVar = {r"$|\.original\d$": None}

    def __init__(
        self,
        n: int,
        *,
        algebra: str = LEARNED,
        parts: int = 1,
        groups: int = 1,
        transposed: bool = False,
        zero_row: int | None = None,
        rows: int | None = None,
    ) -> None:
        super().__init__()
        n = check_algebra(algebra, n)
        parts, groups = operator.index(parts), operator.index(groups)  # of numpy, JSON stores no integers
        zero_row, rows = (None if size is None else operator.index(size) for size in (zero_row, rows))
        self.structure = KroneckerSum(n, algebra, groups=groups)
        self.parts, self.transposed, self.zero_row, self.rows = parts, transposed, zero_row, rows
        layout = {"parts": parts, "groups": groups, "transposed": transposed, "zero_row": zero_row, "rows": rows}
        self.arguments = {"n": n, "algebra": algebra, **layout}

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return H (k, d, ...), from A and S, or from S alone under a fixed algebra."""
        with without_autocast(tensors[0].device.type):  # full precision, as the weight of nn.Embedding
            named = dict(zip((*self.structure.rule_names, "S"), tensors, strict=True))
            leaf = leaf_of(named)
            H = self.compute(named) if leaf is None else leaf
        if self.transposed:
            H = self._swapped(H)
        if self.rows is not None:
            H = H[: self.rows]
        if self.zero_row is not None:
            H = H.index_fill(0, torch.tensor(self.zero_row, device=H.device), 0.0)
        return computed(H)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Return the A and S nearest to a weight (k, d, ...), or the nearest S under a fixed rule."""
        # A tuple even for S alone, because torch would write a bare tensor into the weight itself.
        weight = self._swapped(weight) if self.transposed else weight
        if self.rows is not None:
            weight = F.pad(weight, (0, 0, 0, -self.rows % self.structure.n))
        nearest = [self.structure.nearest(part) or {} for part in weight.chunk(self.parts)]
        if self.parts == 1:
            return tuple(nearest[0].values())
        return tuple(torch.stack([tensors[name] for tensors in nearest]) for name in nearest[0])

    def _refuse_qconfig(self, qconfig: object) -> None:
        if qconfig is not None:
            raise UserError("torch.ao cannot quantise a weight that is computed from A and S; quantise to_dense(model)")

    qconfig = property(fset=_refuse_qconfig)  # torch.ao sets it in each module that it quantises

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return ", ".join(f"{name}={value!r}" for name, value in self.arguments.items())

    def compute(self, tensors: Tensors) -> Tensor:
        """Return the H of all parts, (k, d, ...), with outputs first."""
        if self.parts == 1:
            return self.structure.compute(tensors)
        parts = zip(*tensors.values(), strict=True)
        return torch.cat([self.structure.compute(dict(zip(tensors, part, strict=True))) for part in parts])

    def _swapped(self, weight: Tensor) -> Tensor:
        """Swap inputs and outputs of each group. (k, d/groups, ...) -> (d, k/groups, ...), and back."""
        return weight.reshape(self.structure.groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)


def attach(
    module: nn.Module,
    key: str,
    kronecker: Kronecker,
    chains: dict[int, nn.Module],
    tensors: Sequence[Tensor] | None = None,
) -> None:
    """Replace a weight by `tensors`, the A and S of a parametrization; by default by the nearest ones.

    `chains` holds the A and S of each weight by its id, for other modules that have the same weight.

    Raises:
        DimensionError: n does not divide the weight.
        UserError: the weight is on the meta device, or its values are not real and finite.
    """
    weight, order = module._parameters[key], list(module._parameters)
    known: Any = chains.get(id(weight))
    if known is not None:
        kronecker, tensors = known[0], [getattr(known, f"original{index}") for index in range(known.ntensors)]
    if tensors is not None:
        kronecker.right_inverse = lambda weight: tuple(t.to(weight) for t in tensors)  # type: ignore[method-assign]
    try:
        parametrize.register_parametrization(module, key, kronecker)
    finally:
        vars(kronecker).pop("right_inverse", None)
    parametrizations: Any = module.parametrizations
    if not hasattr(parametrizations, "order"):
        parametrizations.order = order  # of the parameters of the module, for restore()
    parametrizations[key] = chains.setdefault(id(weight), parametrizations[key])
    if isinstance(module, nn.RNNBase):
        _compute_flat_weights(module)


def is_computed(module: nn.Module, key: str) -> bool:
    """Return whether a weight is computed from A and S."""
    chains: Any = getattr(module, "parametrizations", {})
    return key in chains and any(isinstance(part, Kronecker) for part in chains[key])


def restore(module: nn.Module, key: str, weight: nn.Parameter) -> None:
    """Replace a weight that is computed from A and S by a plain parameter."""
    chains: Any = module.parametrizations
    order = getattr(chains, "order", [])
    del chains[key]
    if not chains:
        del module.parametrizations
    module.__class__ = _without(type(module), key, last=not chains)
    module._parameters[key] = weight
    for name in [*order, *(name for name in module._parameters if name not in order)]:
        if name in module._parameters:
            module._parameters[name] = module._parameters.pop(name)
    if isinstance(module, nn.RNNBase) and not chains:
        module._init_flat_weights()


def _without(kind: type, key: str, *, last: bool) -> type:
    """Return a module's class without the property that torch added for a weight; copies share the class.

    ``fully_shard`` makes subclasses of the class with the property. Without its `last` property it becomes the
    original class.
    """
    if key not in vars(kind):
        bases = [_without(base, key, last=last) if hasattr(base, key) else base for base in kind.__bases__]
        return type(kind.__name__, tuple(bases), dict(vars(kind)))
    members = {name: member for name, member in vars(kind).items() if name != key}
    return kind.__bases__[0] if last else type(kind.__name__, kind.__bases__, members)


def _compute_flat_weights(rnn: nn.RNNBase) -> None:
    """Let a converted RNN compute the list of weights that its kernel reads; torch would keep H and its graph."""
    vars(rnn).pop("_flat_weights", None)
    parametrized: Any = type(rnn)  # the class that torch made for this module alone
    parametrized._flat_weights = property(
        lambda self: [getattr(self, name) for name in self._flat_weights_names],
        lambda self, weights: None,
    )
    parametrized.__setattr__ = nn.Module.__setattr__  # torch's own writes biases into the list
    parametrized._update_flat_weights = parametrized.flatten_parameters = lambda self: None
    parametrized._replicate_for_data_parallel = nn.Module._replicate_for_data_parallel  # torch's own copies the list
    parametrized.check_input = _check_width  # torch's own reads the list once more, for its dtype


def _check_width(rnn: nn.RNNBase, x: Tensor, batch_sizes: Tensor | None) -> None:
    if x.shape[-1] != rnn.input_size:
        raise DimensionError(f"input of shape {tuple(x.shape)}: expected {rnn.input_size} features")
