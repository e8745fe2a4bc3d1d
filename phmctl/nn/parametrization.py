"""Weights of A and S or of low rank as parametrizations of torch: register, remove and list them."""

import math
import operator
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import parametrize

from phmctl.algebra.dimension import LEARNED, check_count
from phmctl.algebra.kronecker import check_algebra
from phmctl.algebra.modes import without_autocast
from phmctl.errors import DimensionError, UserError
from phmctl.nn.structures import KroneckerSum, LowRank, Structure, Tensors, computed, leaf_of


class Kronecker(nn.Module):
    """A torch parametrization of a weight as ``Σᵢ kron(A[i], S[i])`` or as a product ``L R`` of low rank.

    ``parametrize.register_parametrization(module, "weight", Kronecker(4))`` replaces a weight (k, d), or (k, d,
    *kernel), by the nearest A (n, n, n) and S (n, k/n, d/n, *kernel). Under a fixed algebra S is the only parameter.
    With `parts` the weight is a stack of equal parts, each with a rule: A (parts, n, n, n), S (parts, n,
    k/(parts·n), d/n).
    ``parametrize.cached()`` keeps H within a scope.

    ``Kronecker(0, rank=m)`` makes the nearest R (m, d, *kernel) and L (k, m). An ``nn.Linear`` or ``nn.Embedding`` that
    :func:`phmctl.convert` changes multiplies by R and L without building H.

    Args:
        n: the PHM hyperparameter, or 0 with a `rank`.
        algebra: ``phm``, or a fixed algebra of dimension n, whose S is found by least squares.
        parts: number of maps that the weight stacks: 4 for an LSTM, 3 for a GRU.
        groups: the groups of a convolution. They share the rule, and n divides the channels of each.
        transposed: the weight is (d, k, ...), as in ``nn.ConvTranspose2d``.
        zero_row: a row of H that is zero, such as the padding row of a table.
        rows: k, if n does not divide it. A and S then make a weight with more rows, and H is the first k of them.
        rank: m, the rank of the product L R.

    Raises:
        DimensionError: n is not the algebra's dimension or, at registration, does not divide the weight, or the rank
            exceeds a side of it.
        UserError: unknown algebra, or both n and a rank.
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
        rank: int = 0,
    ) -> None:
        super().__init__()
        parts, groups = check_count("parts", parts), check_count("groups", groups)
        if n and rank:
            raise UserError(f"n = {n}, rank = {rank}: a weight is a sum of n products or a product of low rank")
        self.structure: Structure
        if rank:
            rank = check_count("rank", rank)
            self.structure = LowRank(rank)
        else:
            n = check_algebra(algebra, n)
            self.structure = KroneckerSum(n, algebra, groups=groups)
        # JSON stores no integers of numpy
        zero_row, rows = (None if size is None else operator.index(size) for size in (zero_row, rows))
        self.names = list(self.structure.shapes(n or 1, n or 1))  # names of the tensors
        self.rule_names = self.structure.rule_names
        self.groups, self.parts, self.transposed, self.zero_row, self.rows = groups, parts, transposed, zero_row, rows
        layout = {"parts": parts, "groups": groups, "transposed": transposed, "zero_row": zero_row, "rows": rows}
        self.arguments: dict[str, Any] = {"n": n, "algebra": algebra, **layout}
        self.arguments |= {"rank": rank} if rank else {}

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return H (k, d, ...), from A and S, from S alone under a fixed algebra, or from R and L."""
        with without_autocast(tensors[0].device.type):  # full precision, as the weight of nn.Embedding
            named = dict(zip(self.names, tensors, strict=True))
            leaf = leaf_of(named)
            H = self.compute(named) if leaf is None else leaf
        if self.transposed:
            H = self._swapped(H)
        if self.rows is not None:
            H = H[: self.rows]
        if self.zero_row is not None:
            H = H.index_fill(0, torch.tensor(self.zero_row, device=H.device), 0.0)
        return computed(H)

    def right_inverse(self, weight: Tensor, moments: Tensor | None = None) -> tuple[Tensor, ...]:
        """Return the tensors whose H is nearest to a weight (k, d, ...).

        `moments` of the inputs weigh the error of L R, as in :meth:`LowRank.nearest`.
        """
        # A tuple even for S alone, because torch would write a bare tensor into the weight itself.
        weight = self._swapped(weight) if self.transposed else weight
        if self.rows is not None:
            weight = F.pad(weight, (0, 0, 0, -self.rows % (self.arguments["n"] or 1)))
        nearest = []
        for part in weight.chunk(self.parts):
            if isinstance(self.structure, LowRank):
                nearest.append(self.structure.nearest(part, moments))
            else:
                nearest.append(self.structure.nearest(part) or {})
        return tuple(
            nearest[0][name] if self.parts == 1 else torch.stack([tensors[name] for tensors in nearest])
            for name in self.names
        )

    def _refuse_qconfig(self, qconfig: object) -> None:
        if qconfig is not None:
            raise UserError("torch.ao cannot quantise a weight that is computed from others; quantise to_dense(model)")

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
        return weight.reshape(self.groups, -1, *weight.shape[1:]).transpose(1, 2).flatten(0, 1)


def rank_of_share(weight: Tensor, share: float, *, parts: int = 1, groups: int = 1, transposed: bool = False) -> int:
    """Return the rank of a :class:`Kronecker` that has a share of the numbers of a weight, at least 1.

    The layout of the weight is as in :class:`Kronecker`. Raises DimensionError if rank 1 has no fewer numbers.
    """
    rows, columns, *kernel = weight.shape
    rows, columns = (columns * groups, rows // groups) if transposed else (rows // parts, columns)
    size = rows * columns * math.prod(kernel)  # numbers of one part
    of_rank = rows + size // rows  # numbers of L and R for each rank
    rank = max(1, min(int(share * size / of_rank), rows, size // rows))
    if rank * of_rank >= size:
        raise DimensionError(f"the smallest low-rank weight {tuple(weight.shape)} has no fewer parameters")
    return rank


def attach(
    module: nn.Module,
    key: str,
    kronecker: Kronecker,
    chains: dict[int, nn.Module],
    tensors: Sequence[Tensor] | None = None,
    moments: Tensor | None = None,
) -> None:
    """Replace a weight by a parametrization of the given `tensors`, by default the nearest ones, weighed by `moments`.

    `chains` holds the parametrization of each weight by its id, for other modules that have the same weight.

    Raises:
        DimensionError: n does not divide the weight.
        UserError: the weight is on the meta device, or its values are not real and finite.
    """
    weight, order = module._parameters[key], list(module._parameters)
    known: Any = chains.get(id(weight))
    if known is not None:
        kronecker, tensors = known[0], [getattr(known, f"original{index}") for index in range(known.ntensors)]
    if tensors is not None:
        kronecker.right_inverse = lambda weight: tuple(t.to(weight) for t in tensors)  # type: ignore[method-assign, misc, assignment]
    elif moments is not None:
        kronecker.right_inverse = partial(kronecker.right_inverse, moments=moments)  # type: ignore[method-assign]
    try:
        parametrize.register_parametrization(module, key, kronecker)
    finally:
        vars(kronecker).pop("right_inverse", None)
    parametrizations: Any = module.parametrizations
    if not hasattr(parametrizations, "order"):
        parametrizations.order = order  # order of the parameters, for restore()
    parametrizations[key] = chains.setdefault(id(weight), parametrizations[key])
    if isinstance(module, nn.RNNBase):
        _compute_flat_weights(module)
    parametrized: Any = type(module)  # the class that torch made for this module alone
    for base, forward in ((nn.Linear, _linear), (nn.Embedding, _lookup)):
        if parametrized.forward is base.forward:
            parametrized.forward = forward


def _low_rank(module: nn.Module) -> tuple[Tensor, Tensor, int | None] | None:
    """Return R, L and the zero row, if R and L alone make the weight of a map or a table. Otherwise return None."""
    if not parametrize.is_parametrized(module, "weight"):
        return None
    chain: Any = module.parametrizations["weight"]  # type: ignore[index]
    if len(chain) != 1 or not isinstance(chain[0], Kronecker) or chain[0].names != ["R", "L"]:
        return None
    return chain.original0, chain.original1, chain[0].zero_row


def _linear(self: nn.Linear, input: Tensor) -> Tensor:
    """The forward of a converted ``nn.Linear``: multiply by R and then by L."""
    match _low_rank(self):
        case R, L, None:
            return F.linear(F.linear(input, R), L, self.bias)
    return F.linear(input, self.weight, self.bias)


def _lookup(self: nn.Embedding, input: Tensor) -> Tensor:
    """The forward of a converted ``nn.Embedding``: look up the rows of L and multiply them by R."""
    factors = _low_rank(self)
    if factors is None or self.scale_grad_by_freq:
        return nn.Embedding.forward(self, input)
    R, L, zero_row = factors
    with without_autocast(R.device.type):
        rows = F.embedding(input, L, self.padding_idx) @ R  # (..., d)
    if zero_row is not None:
        rows = rows.masked_fill((input == zero_row).unsqueeze(-1), 0.0)
    elif self.padding_idx is not None:  # no gradient from there, as in torch
        rows = torch.where((input == self.padding_idx).unsqueeze(-1), rows.detach(), rows)
    return rows


def is_computed(module: nn.Module, key: str) -> bool:
    """Return whether a weight is computed by a :class:`Kronecker`."""
    chains: Any = getattr(module, "parametrizations", {})
    return key in chains and any(isinstance(part, Kronecker) for part in chains[key])


def restore(module: nn.Module, key: str, weight: nn.Parameter) -> None:
    """Replace a weight that is computed by a :class:`Kronecker` by a plain parameter."""
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


def conversions(model: nn.Module) -> list[dict[str, Any]]:
    """Return the arguments of each :class:`Kronecker` of a model, with the names of the weights that it computes."""
    records: dict[int, dict[str, Any]] = {}
    plain = plain_names(model)
    for name, module in model.named_modules():
        if wrapped_child(module) is not None:
            continue  # torch.compile passes attributes on
        parametrizations: Any = module.parametrizations if parametrize.is_parametrized(module) else {}
        for key, chain in parametrizations.items():
            if isinstance(chain[0], Kronecker) and len(chain) == 1:
                record = records.setdefault(id(chain), chain[0].arguments | {"weights": []})
                record["weights"].append(f"{plain[name]}.{key}".removeprefix("."))
    return list(records.values())


def plain_names(model: nn.Module) -> dict[str, str]:
    """Return the names of all modules without the parts that wrappers such as ``torch.compile`` add, by name."""
    modules = dict(model.named_modules(remove_duplicate=False))
    plain = {"": ""}
    for name in modules:
        parent, _, child = name.rpartition(".")
        if name and child == wrapped_child(modules[parent]):
            plain[name] = plain[parent]
        elif name:
            plain[name] = f"{plain[parent]}.{child}".removeprefix(".")
    return plain


def wrapped_child(module: nn.Module) -> str | None:
    """Return the attribute of a wrapper (``torch.compile``, ``DataParallel``) that holds the module, or None."""
    if isinstance(module, (nn.DataParallel, DistributedDataParallel)):
        return "module"
    return "_orig_mod" if [*module._modules] == ["_orig_mod"] else None


def describe_in_configs(model: nn.Module) -> None:
    """Write the conversion into each config of `transformers` in a model, or remove it from a dense model's.

    ``save_pretrained`` writes the config. ``from_pretrained`` refuses an entry of this name without ``quant_method``.
    Without the entry, or with a method that it does not know, it would draw random weights.
    """
    for module in reversed(list(model.modules())):  # the outermost module of a config is the last that writes it
        config: Any = getattr(module, "config", None)
        if not hasattr(config, "to_diff_dict"):
            continue
        records = conversions(module)
        entry = getattr(config, "quantization_config", None)
        if records:
            config.quantization_config = {"phmctl": "load with phmctl.from_pretrained(cls, folder)", "weights": records}
            vars(module)["_weight_conversions"] = []  # save_pretrained would write the names of older versions
        elif isinstance(entry, dict) and "phmctl" in entry:
            del config.quantization_config
            vars(module)["_weight_conversions"] = None  # save_pretrained renames again
