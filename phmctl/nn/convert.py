"""Convert a dense model to weights of few numbers (:func:`convert`) and back (:func:`to_dense`).

Each weight becomes the nearest sum of Kronecker products or the nearest product of low rank, as a parametrization of
``torch.nn.utils.parametrize``: the module keeps its class and hooks, and the attribute ``weight`` is H.
"""

import copy
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd
from torch.nn.parameter import is_lazy
from torch.nn.utils import parametrize

from phmctl.algebra.dimension import FIXED_DIMENSION, LEARNED
from phmctl.algebra.kronecker import check_algebra
from phmctl.algebra.modes import without_autocast
from phmctl.errors import DimensionError, PhmctlError, UserError
from phmctl.nn.convolution import PHMConv
from phmctl.nn.embedding import NarrowEmbedding, PHMEmbedding
from phmctl.nn.linear import StructuredWeight
from phmctl.nn.moments import input_moments
from phmctl.nn.parametrization import Kronecker, attach, describe_in_configs, is_computed, rank_of_share, restore

_TABLES = (nn.Embedding, nn.EmbeddingBag)
_CONVERTIBLE = (nn.Linear, _ConvNd, nn.RNNBase, nn.RNNCellBase, nn.MultiheadAttention, *_TABLES)
_COUNTED = _NOT_SELECTED, _VECTOR = "not selected", "its weight is a vector"  # reasons whose modules are counted only

_LEAST_RANK = 4  # healing does not repair a map of ten classes at rank 2, or a convolution of one channel at rank 1

Selection = str | re.Pattern[str] | Callable[[str, nn.Module], bool] | Sequence[Any] | None


@dataclass(frozen=True, slots=True)
class Converted:
    """One module in the report of :func:`convert`."""

    name: str  # in the model
    kind: str  # class of the module
    shape: tuple[int, ...]  # shape of the first weight with the most axes
    before: int  # parameters of the weights
    after: int  # parameters that compute the weights, or `before` if it was skipped
    error: float | None  # ‖W − H‖ / ‖W‖, Frobenius norms, over all weights, or None if it was skipped
    skipped: str | None = None  # the reason


@dataclass(frozen=True, slots=True)
class Conversion:
    """The report of :func:`convert`, which prints as a table."""

    rows: list[Converted]  # a row for each selected module
    others: list[Converted]  # the other modules that have a weight, with the reason why it is unchanged
    before: int  # parameters of the model, shared ones counted once
    after: int

    def __str__(self) -> str:
        from phmctl.console import Table

        cells = []
        for row in (*self.rows, *self.others):
            if row.skipped not in _COUNTED:
                shape = "×".join(map(str, row.shape))
                error = f"{row.error:.4f}" if row.error is not None else f"skipped: {row.skipped}"
                cells.append((row.name, row.kind, shape, f"{row.before:,}", f"{row.after:,}", error))
        below = [f"{self.before:,} → {self.after:,} parameters ({self.after / max(self.before, 1):.1%})"]
        for reason in _COUNTED:
            kinds = _counted(row.kind for row in self.others if row.skipped == reason)
            below += [f"unchanged, {reason}: {kinds}"] if kinds else []
        columns = ("module", "kind", "shape", "before", "after", "error")
        return Table("", columns, cells, text=[1, 2, 5], below=["", *below]).drawn().rstrip("\n")


def _counted(kinds: Iterable[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in Counter(kinds).most_common())


@torch.no_grad()
def convert(
    model: nn.Module,
    n: int | None = None,
    *,
    share: float | None = None,
    inputs: Iterable[Any] | None = None,
    select: Selection = None,
    algebra: str = LEARNED,
    inplace: bool = False,
) -> tuple[nn.Module, Conversion]:
    """Replace the weights of any model by the nearest ones of few numbers. :func:`phmctl.to_dense` goes back.

    ``convert(model, share=0.25)`` makes products L R of low rank with a quarter of the numbers, which suit trained
    weights. ``convert(model, n=4)`` makes sums of n Kronecker products, which suit training from scratch.

    The weights of linear maps, convolutions (transposed ones too), embeddings, recurrent layers and cells (a rule for
    each gate) and ``nn.MultiheadAttention`` get a :class:`Kronecker` parametrization. Each module stays an instance of
    its class, with its hooks. Shared weights stay shared. A module that cannot be converted stays unchanged. Without
    `select` so does one whose weight has no gradient, such as a table of sinusoids, or that a share leaves a rank below
    4. The report names every module that has a weight, with the reason if it is unchanged. n need not divide the rows
    of a table: H is then the first rows of a larger sum.

    Args:
        model: any module, also a single layer.
        n: the PHM hyperparameter, which a fixed algebra implies.
        share: the numbers of each weight as a share of the dense weight's, between 0 and 1; more if rank 1 has more.
        inputs: with a share, batches for the model: tensors, tuples of arguments or dicts. The products are then
            nearest on what these batches bring to each ``nn.Linear`` and ``nn.Embedding``, which starts far closer to
            the dense model (a few hundred examples suffice).
        select: the modules to convert: a glob over names (``"encoder.*.fc?"``), a compiled regular expression
            that is searched in names, a function of name and module, or a sequence of these. None selects all.
        algebra: ``phm``, or a fixed algebra, whose S is found by least squares.
        inplace: change `model` itself instead of a copy.

    Returns:
        the converted model, and the report.

    Raises:
        DimensionError: n is not the algebra's dimension.
        UserError: not exactly one of n of at least 2, a fixed algebra and a share; inputs without a share; no module
            that is selected can be converted; the model cannot be copied.
    """
    size = _checked_size(n, share, algebra)
    if inputs is not None and share is None:
        raise UserError("inputs are for products of low rank; pass share=, or leave them out")
    model = _checked_copy(model, inplace)
    found = dict(_modules_with_weights(model))
    selected = {
        name: module for name, module in found.items() if _is_convertible(module) and _matches(select, name, module)
    }
    before = _parameter_count(model)
    moments = {} if inputs is None else input_moments(model, selected.values(), inputs)
    converter = _Converter(model, list(selected.values()), size, moments, named=select is not None)
    # Tables come first, those with a padding row before the others: maps with the same weight keep the table's rows.
    ranks = {
        name: (not isinstance(part, _TABLES), getattr(part, "padding_idx", None) is None)
        for name, part in selected.items()
    }
    names = sorted(selected, key=ranks.__getitem__)
    rows = converter.obstructed(selected)
    rows |= {name: converter.convert(name, selected[name]) for name in names if name not in rows}
    others = [_unchanged(name, module) for name, module in found.items() if name not in selected]
    if all(row.skipped for row in rows.values()):
        every = sorted((*rows.values(), *others), key=lambda row: row.skipped == _VECTOR)
        reasons = [f"{row.name or row.kind}: {row.skipped}" for row in every[:3]]
        kinds = _counted(row.kind for row in every) or "none"
        raise UserError("; ".join(["no module can be converted", f"modules with weights: {kinds}", *reasons]))
    describe_in_configs(model)
    return model, Conversion([rows[name] for name in selected], others, before, _parameter_count(model))


def _checked_size(n: int | None, share: float | None, algebra: str) -> dict[str, Any]:
    """Return the arguments of :func:`convert` that set the size of each weight, with defaults. Raises UserError."""
    if share is None:
        order = check_algebra(algebra, FIXED_DIMENSION.get(algebra, 1) if n is None else n)
        if order == 1:
            raise UserError(f"n = {n}: convert needs a share, n of at least 2, or a fixed algebra that implies it")
        return {"n": order, "algebra": algebra, "share": None}
    if not (isinstance(share, (int, float)) and 0 < share < 1):
        raise UserError(f"share = {share!r}: expected a number between 0 and 1")
    if n is not None or algebra != LEARNED:
        raise UserError(f"n = {n}, algebra = {algebra!r}: pass either share, or n or an algebra")
    return {"n": 0, "algebra": algebra, "share": share}


def _row(name: str, module: nn.Module) -> Converted:
    """Return the row of a module that is unchanged."""
    weights = [weight for weight in _weights(module) if not is_lazy(weight)]
    shape = max((tuple(weight.shape) for weight in weights), default=(), key=len)
    size = sum(weight.numel() for weight in weights)
    return Converted(name, type(module).__name__, shape, before=size, after=size, error=None)


def _unchanged(name: str, module: nn.Module) -> Converted:
    """Return the row of a module that is not selected or not supported."""
    row = _row(name, module)
    if _is_convertible(module):
        reason = _NOT_SELECTED
    elif isinstance(module, _TABLES):
        reason = "a PHM table has no max_norm and no sparse gradient"
    elif isinstance(module, StructuredWeight):
        reason = "it is a layer of phmctl"
    elif len(row.shape) < 2:
        reason = _VECTOR
    elif isinstance(module, nn.Bilinear):
        reason = "not supported: its weight has two input axes"
    else:
        reason = "not supported: convert does not know the class"
    return replace(row, skipped=reason)


def _parameter_count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters() if not is_lazy(parameter))


def _checked_copy(model: nn.Module, inplace: bool) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise UserError(f"model: expected a torch.nn.Module, not {type(model).__name__}")
    if inplace:
        return model
    # Old weight_norm, spectral_norm and prune keep a computed weight and the graph, which deepcopy refuses.
    attributes = [value for module in model.modules() for value in vars(module).values()]
    computed = [value for value in attributes if isinstance(value, Tensor) and value.grad_fn is not None]
    try:
        return copy.deepcopy(model, {id(weight): weight.detach().clone() for weight in computed})
    except (RuntimeError, TypeError) as problem:
        raise UserError(f"the model cannot be copied, so pass inplace=True: {problem}") from problem


class _Converter:
    """Converts the modules of one model; modules that share a weight share the parametrization."""

    def __init__(
        self,
        model: nn.Module,
        modules: Sequence[nn.Module],
        size: Mapping[str, Any],
        moments: Mapping[nn.Module, Tensor],
        *,
        named: bool,
    ) -> None:
        self.size, self.moments, self.named = size, moments, named
        self.chains: dict[int, nn.Module] = {}  # parametrizations by the id of the weight that they replace
        converting = {owner for module in modules for owner, _ in _weight_attributes(module)}
        others = [(name, module) for name, module in model.named_modules() if module not in converting]
        # Names of modules that stay dense, by the ids of the parameters.
        self.dense = {id(parameter): name for name, module in others for parameter in module.parameters(recurse=False)}

    def obstructed(self, modules: Mapping[str, nn.Module]) -> dict[str, Converted]:
        """Return the rows of the modules that stay dense, because of themselves or of a weight that they share."""
        rows: dict[str, Converted] = {}
        count = -1
        while len(rows) > count:
            count = len(rows)
            for name in [name for name in modules if name not in rows]:
                weights = _weights_by_place(modules[name])
                reason = self._obstacle(weights)
                if reason is not None:
                    rows[name] = replace(_row(name, modules[name]), skipped=reason)
                    self.dense |= {id(weight): name for weight in weights.values()}
        return rows

    def convert(self, name: str, module: nn.Module) -> Converted:
        """Parametrize all weights of a module, or none of them, and return the row of the report."""
        weights = _weights_by_place(module)
        row = _row(name, module)
        reason = self._obstacle(weights) or self._parametrize(weights)
        if reason is not None:
            self.dense |= {id(weight): name for weight in weights.values()}
            return replace(row, skipped=reason)
        after = sum(_parameter_count(self.chains[id(weight)]) for weight in weights.values())
        W = torch.cat([weight.flatten() for weight in weights.values()])
        H = torch.cat([getattr(owner, key).flatten() for owner, key in weights])
        return replace(row, after=after, error=((H - W).norm() / W.norm()).item() if W.any() else 0.0)

    def _obstacle(self, weights: Mapping[tuple[nn.Module, str], nn.Parameter]) -> str | None:
        """Return the reason why a module cannot be converted, or None."""
        if any(key not in owner._parameters for owner, key in weights):
            if any(is_computed(owner, key) for owner, key in weights):
                return "it is already converted; phmctl.to_dense(model) goes back"
            return "its weight is already computed: a parametrization, a norm, a pruning"
        if any(map(is_lazy, weights.values())):
            return "the shape of its weight is not known before its first input"
        for weight in weights.values():
            if type(weight) not in (nn.Parameter, Tensor):  # sharded, quantised
                return f"its weight is a {type(weight).__name__}, not a plain nn.Parameter"
            if id(weight) in self.dense:
                return f"it shares its weight with {self.dense[id(weight)] or 'the model'}, which stays dense"
        if not self.named and not all(weight.requires_grad for weight in weights.values()):
            return "its weight has no gradient, so that training would not repair the error; name it in select"
        return None

    def _parametrize(self, weights: Mapping[tuple[nn.Module, str], nn.Parameter]) -> str | None:
        """Register a parametrization for each weight. If one fails, undo them and return the reason.

        A weight that it shares with a converted module stays converted.
        """
        converted = dict(self.chains)  # of other modules
        try:
            for (owner, key), weight in weights.items():
                kronecker = _kronecker(owner, key, weight, **self.size)
                rank = kronecker.arguments.get("rank", _LEAST_RANK)
                if rank < _LEAST_RANK and not self.named:
                    raise DimensionError(f"the share leaves it rank {rank}; name it in select, or convert it with n")
                attach(owner, key, kronecker, self.chains, moments=self.moments.get(owner))
        except PhmctlError as problem:
            self.chains = converted
            for (owner, key), weight in weights.items():
                if parametrize.is_parametrized(owner, key) and id(weight) not in converted:
                    restore(owner, key, weight)
            return str(problem)
        return None


def _kronecker(module: nn.Module, key: str, weight: Tensor, n: int, algebra: str, share: float | None) -> Kronecker:
    """Return the parametrization of a module's weight. Raises DimensionError if nothing would be saved."""
    layout, zero_row = _layout(module, key, weight), _zero_row(module, weight)
    if share is not None:
        return Kronecker(0, rank=rank_of_share(weight, share, **layout), zero_row=zero_row, **layout)
    rows = len(weight) if isinstance(module, _TABLES) and len(weight) % n else None
    return Kronecker(n, algebra=algebra, rows=rows, zero_row=zero_row, **layout)


def _layout(module: nn.Module, key: str, weight: Tensor) -> dict[str, Any]:
    """Return the arguments of :class:`Kronecker` for the axes of a module's weight."""
    if isinstance(module, _ConvNd):
        return {"groups": module.groups, "transposed": module.transposed}
    if isinstance(module, nn.RNNBase | nn.RNNCellBase) and not key.startswith("weight_hr"):  # a projection
        return {"parts": len(weight) // module.hidden_size}
    return {}


def _zero_row(module: nn.Module, weight: Tensor) -> int | None:
    """Return the padding row of a table if it is zero."""
    padding = module.padding_idx if isinstance(module, _TABLES) else None
    if padding is None or weight.is_meta or weight[padding].any():
        return None
    return padding


def _weight_attributes(module: nn.Module) -> list[tuple[nn.Module, str]]:
    """Return the weights of a convertible module as pairs of a module and an attribute's name."""
    if isinstance(module, nn.RNNBase):
        return [(module, key) for key in module._flat_weights_names if key.startswith("weight")]
    if isinstance(module, nn.RNNCellBase):
        return [(module, "weight_ih"), (module, "weight_hh")]
    if isinstance(module, nn.MultiheadAttention):
        keys = ["in_proj_weight"] if module._qkv_same_embed_dim else [f"{part}_proj_weight" for part in "qkv"]
        return [*((module, key) for key in keys), (module.out_proj, "weight")]
    return [(module, "weight")]


def _weights_by_place(module: nn.Module) -> dict[tuple[nn.Module, str], Any]:
    """Return the weights of a convertible module by module and attribute's name."""
    return {(owner, key): getattr(owner, key) for owner, key in _weight_attributes(module)}


def is_conv1d(module: nn.Module) -> bool:
    """Return whether a module is the linear map of `transformers` with a transposed weight, converted or not."""
    classes = type(module).__mro__
    return any(base.__name__ == "Conv1D" and base.__module__.startswith("transformers.") for base in classes)


def _is_convertible(module: nn.Module) -> bool:
    if isinstance(module, _TABLES) and (module.max_norm is not None or module.sparse):
        return False
    return isinstance(module, _CONVERTIBLE) or is_conv1d(module)


def _modules_with_weights(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the names and modules that have a weight. Parts of attentions and parametrizations are skipped."""
    parts: set[int] = set()
    for name, module in model.named_modules():
        if id(module) in parts:
            continue
        if isinstance(module, nn.MultiheadAttention):
            parts.update(map(id, module.modules()))
        elif parametrize.is_parametrized(module):
            parts.update(map(id, module.parametrizations.modules()))
        if _weights(module):
            yield name, module


def _weights(module: nn.Module) -> list[Tensor]:
    """Return the weights of a module of any type, also computed ones."""
    if _is_convertible(module):
        return [getattr(owner, key) for owner, key in _weight_attributes(module)]
    computed = list(module.parametrizations) if parametrize.is_parametrized(module) else []  # type: ignore[arg-type]
    keys = [key for key, _ in module.named_parameters(recurse=False)]
    return [getattr(module, key) for key in (*keys, *computed) if "bias" not in key]


def _matches(select: Selection, name: str, module: nn.Module) -> bool:
    if select is None:
        return True
    if isinstance(select, str):
        return fnmatchcase(name, select)
    if isinstance(select, re.Pattern):
        return select.search(name) is not None
    if callable(select) and not isinstance(select, type):
        return bool(select(name, module))
    if not isinstance(select, Sequence | Set):
        raise UserError(f"select: {select!r} is not a glob, a regular expression, a function, or a sequence of these")
    return any(_matches(part, name, module) for part in select)


def to_dense(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Replace every PHM map of a model by a dense layer that computes the same function, to rounding.

    ``PHMLinear`` becomes ``nn.Linear``, ``PHMConv2d`` ``nn.Conv2d``, ``PHMEmbedding`` ``nn.Embedding``, and modules
    that :func:`phmctl.convert` parametrized get plain weights. A ``PHMLSTM`` stays, with dense maps.
    ``PHMLSTM.to_dense`` makes an ``nn.LSTM``. The padding row of a table becomes zero, also for a generator that is
    tied to the table. Shared modules, weights and biases stay shared. Frozen parameters stay frozen. Hooks of the
    replaced layers and the forward of a subclass are lost.

    Args:
        model: any module, also a single layer.
        inplace: change `model` itself, if a copy would be too large. If `model` is a layer to replace, use the result.

    Returns:
        the model, or the copy, in the same mode. A single ``PHMLinear`` becomes an ``nn.Linear``.
    """
    model = _checked_copy(model, inplace)
    replacements: dict[int, nn.Module] = {}
    weights: dict[tuple[int, ...], nn.Parameter] = {}  # by the ids of the tensors that a weight is computed from
    for module in list(model.modules()):
        if isinstance(module, (StructuredWeight, NarrowEmbedding)):
            replacements[id(module)] = _dense(module, weights)
        elif parametrize.is_parametrized(module):
            _remove_kronecker(module, weights)
    for table in replacements.values():
        if isinstance(table, nn.Embedding) and table.padding_idx is not None:
            table.weight.data[table.padding_idx] = 0  # a PHM table returns zeros for it, whatever that row of H is
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # named_children() skips the second name of a shared module
            if id(child) in replacements:
                setattr(parent, name, replacements[id(child)])
    describe_in_configs(model)
    return replacements.get(id(model), model)


@torch.no_grad()
def _remove_kronecker(module: nn.Module, weights: dict[tuple[int, ...], nn.Parameter]) -> None:
    for key, chain in list(module.parametrizations.items()):  # type: ignore[union-attr, operator]
        if is_computed(module, key):
            sources = list(chain.parameters())
            H = getattr(module, key).clone(memory_format=torch.contiguous_format)  # safetensors refuses others
            weight = nn.Parameter(H, any(source.requires_grad for source in sources))
            restore(module, key, weights.setdefault(tuple(map(id, sources)), weight))


@torch.no_grad()
def _dense(module: StructuredWeight | NarrowEmbedding, weights: dict[tuple[int, ...], nn.Parameter]) -> nn.Module:
    """Return the dense layer of a module. Maps computed from the same tensors get the same weight."""
    sources = [tensor for name, tensor in module.named_parameters() if "bias" not in name.split(".")]
    weight = module._parameters.get("weight")
    if weight is None:  # with n = 1 the weight is a parameter and stays the same object
        with without_autocast(sources[0].device.type):
            weight = nn.Parameter(module.weight.detach(), any(source.requires_grad for source in sources))
    shared = weights.setdefault(tuple(map(id, sources)), weight)
    if shared.is_meta or torch.equal(shared, weight):  # two parametrizations of the same tensors differ
        weight = shared
    if isinstance(module, (PHMEmbedding, NarrowEmbedding)):
        padding = getattr(module, "padding_idx", None)
        table = nn.Embedding(weight.shape[0], weight.shape[1], padding, _weight=weight)
        table.weight = weight
        return table.train(module.training)
    bias = getattr(module, "bias", None)
    if bias is not None and not isinstance(bias, nn.Parameter):  # computed by a parametrization or by pruning
        trainable = any(parameter.requires_grad for name, parameter in module.named_parameters() if "bias" in name)
        bias = nn.Parameter(bias.detach(), trainable)
    dense: nn.Module  # made on the meta device, which draws no random numbers
    if isinstance(module, PHMConv):
        dense = module.on_meta()
    else:
        dense = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
    dense.weight = weight
    dense.register_parameter("bias", bias)
    return dense.train(module.training)
