"""From a dense model to PHM weights (:func:`convert`), and back (:func:`to_dense`).

Each weight becomes the nearest sum of Kronecker products. It is parametrized as ``torch.nn.utils.parametrize`` does it:
the module keeps its class, its hooks and its forward, and reads H where it reads its weight.
"""

import copy
import functools
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from phmctl.algebra.kronecker import LEARNED, check_algebra
from phmctl.algebra.modes import without_autocast
from phmctl.console import Table
from phmctl.dimension import FIXED_DIMENSION
from phmctl.errors import PhmctlError, UserError
from phmctl.nn.embedding import NarrowEmbedding, PHMEmbedding
from phmctl.nn.linear import StructuredWeight
from phmctl.nn.structures import RuleSum

Selection = str | re.Pattern[str] | Callable[[str, nn.Module], bool] | Sequence[Any] | None


class Kronecker(nn.Module):
    """A torch parametrization of a weight as ``Σᵢ kron(A[i], S[i])``.

    ``parametrize.register_parametrization(module, "weight", Kronecker(4))`` replaces a weight (k, d) by the nearest A
    (n, n, n) and S (n, k/n, d/n); under a fixed algebra S is the only parameter. With `parts` the weight is a stack of
    equal parts, each with its own rule: A (parts, n, n, n), S (parts, n, k/(parts·n), d/n).
    ``parametrize.cached()`` keeps H within its scope.

    Args:
        n: the PHM hyperparameter.
        algebra: ``phm``, or a fixed algebra of dimension n, whose S is found by least squares.
        parts: number of maps that the weight stacks; 4 for an LSTM.
        zero_row: a row of H that is zero, such as the padding row of a table.

    Raises:
        DimensionError: n is not the algebra's dimension; or, at registration, does not divide the weight.
        UserError: unknown algebra.
    """

    def __init__(self, n: int, *, algebra: str = LEARNED, parts: int = 1, zero_row: int | None = None) -> None:
        super().__init__()
        check_algebra(algebra, n)
        self.structure = RuleSum(n, algebra)
        self.parts, self.zero_row = parts, zero_row

    def forward(self, *tensors: Tensor) -> Tensor:
        """Return H (k, d) of A and S, or of S alone under a fixed algebra."""
        with without_autocast(tensors[0].device.type):  # full precision, as the weight of nn.Embedding
            if self.parts == 1:
                H = self._dense(*tensors)
            else:
                H = torch.cat([self._dense(*part) for part in zip(*tensors, strict=True)])  # (k, d)
        if self.zero_row is None:
            return H
        return H.index_fill(0, torch.tensor(self.zero_row, device=H.device), 0.0)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Return the A and S nearest to a weight (k, d), or the nearest S under a fixed rule."""
        # A tuple also if S is alone: torch would write a bare tensor into the weight itself.
        nearest = [tuple(self.structure.nearest(part).values()) for part in weight.chunk(self.parts)]
        return nearest[0] if self.parts == 1 else tuple(map(torch.stack, zip(*nearest, strict=True)))

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        parts = f", parts={self.parts}" if self.parts > 1 else ""
        return f"n={self.structure.n}, algebra={self.structure.algebra!r}{parts}"

    def _dense(self, *tensors: Tensor) -> Tensor:
        names = (*self.structure.rule_names, "S")
        return self.structure.dense(dict(zip(names, tensors, strict=True)))


@dataclass(frozen=True, slots=True)
class Converted:
    name: str  # in the model
    kind: str  # its class
    shape: tuple[int, ...]  # of its first weight, (k, d)
    before: int  # numbers of its weights
    after: int  # numbers of A and S, or as before where it was skipped
    error: float | None  # ‖W − H‖ / ‖W‖, Frobenius norms, over all its weights; None where it was skipped
    skipped: str | None = None  # why it was


@dataclass(slots=True)
class Conversion:
    """The report of :func:`convert`; ``print(report)`` is a table."""

    rows: list[Converted] = field(default_factory=list)  # a row for each module that was selected
    before: int = 0  # parameters of the model, a shared one once
    after: int = 0  # those of the converted one

    def __str__(self) -> str:
        cells = []
        for row in self.rows:
            error = f"{row.error:.4f}" if row.error is not None else f"skipped: {row.skipped}"
            cells.append(
                (row.name, row.kind, "×".join(map(str, row.shape)), f"{row.before:,}", f"{row.after:,}", error)
            )
        columns, share = ("module", "kind", "shape", "before", "after", "error"), self.after / max(self.before, 1)
        below = f"{self.before:,} → {self.after:,} parameters ({share:.1%})"
        return Table("", columns, cells, text=(1, 2, 5), below=[below]).drawn().rstrip()


@torch.no_grad()
def convert(
    model: nn.Module, n: int | None = None, *, select: Selection = None, algebra: str = LEARNED, inplace: bool = False
) -> tuple[nn.Module, Conversion]:
    """Make the weights of any model the nearest sums of Kronecker products; :func:`phmctl.to_dense` goes back.

    The weights of ``nn.Linear`` (and ``Conv1D`` of `transformers`), ``nn.Embedding``, ``nn.LSTM`` (a rule for each
    gate) and ``nn.MultiheadAttention`` get a :class:`Kronecker` parametrization; classes, hooks and forwards stay.
    Weights that are one parameter stay one. What cannot be converted stays as it is, with the reason.

    Args:
        model: any module, or such a layer itself.
        n: the PHM hyperparameter; a fixed algebra implies it.
        select: which modules: a glob over their names (``"encoder.*.fc?"``), a compiled regular expression that is
            searched in them, a function of name and module, or several of these; None selects all.
        algebra: ``phm``, or a fixed algebra, whose S is found by least squares.
        inplace: change `model` itself instead of a copy.

    Returns:
        the converted model, and the report.

    Raises:
        DimensionError: n is not the algebra's own.
        UserError: there is neither n of at least 2 nor a fixed algebra, or no module is selected.
    """
    order = FIXED_DIMENSION.get(algebra, 0) if n is None else n
    check_algebra(algebra, order)
    if order < 2:
        raise UserError(f"convert needs n of at least 2, or a fixed algebra that implies it; n is {n}")
    model = _own(model, inplace)
    chosen = [(name, module) for name, module in _candidates(model) if _selected(name, module, select)]
    if not chosen:
        raise UserError("no module is selected to convert; select takes names as model.named_modules() gives them")
    report = Conversion(before=sum(part.numel() for part in model.parameters()))
    users: dict[int, list[tuple[str, int]]] = {}  # of a tensor's id: names and ids of the modules that hold it
    for name, module in model.named_modules():
        for part in module.parameters(recurse=False):
            users.setdefault(id(part), []).append((name, id(module)))
    converting = {id(owner) for _, module in chosen if not _unfit(module) for owner, _ in _weights(module)}
    first: dict[int, Any] = {}  # of a weight's id: the list of parametrizations that its other users share
    padded_first = sorted(chosen, key=lambda each: getattr(each[1], "padding_idx", None) is None)  # its zeros stay
    rows = {name: _convert(name, module, order, algebra, users, converting, first) for name, module in padded_first}
    report.rows += [rows[name] for name, _ in chosen]
    report.after = sum(part.numel() for part in model.parameters())
    return model, report


def _own(model: nn.Module, inplace: bool) -> nn.Module:
    if not isinstance(model, nn.Module):
        raise UserError(f"the model is a torch.nn.Module, not {type(model).__name__}")
    return model if inplace else copy.deepcopy(model)


def _convert(
    name: str,
    module: nn.Module,
    n: int,
    algebra: str,
    users: dict[int, list[tuple[str, int]]],
    converting: set[int],
    first: dict[int, Any],
) -> Converted:
    """Parametrize the weights of one module, all or none."""
    weights = {(owner, key): getattr(owner, key) for owner, key in _weights(module)}
    before = sum(weight.numel() for weight in weights.values())
    row = name, type(module).__name__, tuple(next(iter(weights.values())).shape), before
    if _unfit(module):
        return Converted(*row, before, None, "a PHM table has no max_norm and no sparse gradient")
    if any(key not in owner._parameters for owner, key in weights):
        return Converted(*row, before, None, "its weight is computed already: a parametrization, a norm, a pruning")
    outside = [user for weight in weights.values() for user, key in users[id(weight)] if key not in converting]
    if outside:
        other = outside[0] or "the model"
        return Converted(*row, before, None, f"its weight is also that of {other}, which is not converted with it")
    try:
        for (owner, key), weight in weights.items():
            parts = 4 if key.startswith(("weight_ih", "weight_hh")) else 1  # an LSTM's gates
            padding = owner.padding_idx if isinstance(owner, nn.Embedding) else None
            zero_row = None if padding is None or weight.is_meta or weight[padding].any() else int(padding)
            held = Kronecker(n, algebra=algebra, parts=parts, zero_row=zero_row)
            parametrize.register_parametrization(owner, key, held)
    except PhmctlError as problem:
        for (owner, key), weight in weights.items():
            if parametrize.is_parametrized(owner, key):
                _restore(owner, key, weight)
        return Converted(*row, before, None, str(problem))
    left = whole = after = 0.0
    for (owner, key), weight in weights.items():
        made = owner.parametrizations[key]  # type: ignore[index]
        shared = first.setdefault(id(weight), made)
        owner.parametrizations[key] = shared  # type: ignore[index, operator]
        for part in shared.parameters():
            part.requires_grad_(weight.requires_grad)
            after += part.numel()
        left += (getattr(owner, key) - weight).norm().item() ** 2
        whole += weight.norm().item() ** 2
    for owner in {owner for owner, _ in weights}:
        if isinstance(owner, (nn.LSTM, nn.MultiheadAttention)):
            _build_once_a_forward(owner)
    return Converted(*row, int(after), (left / whole) ** 0.5 if whole else 0.0)


def _unfit(module: nn.Module) -> bool:
    return isinstance(module, nn.Embedding) and (module.max_norm is not None or module.sparse)


def _restore(module: nn.Module, key: str, weight: nn.Parameter) -> None:
    kind = type(module)  # torch removes the property from the class, which a deep copy shares with its original
    module.__class__ = type(kind.__name__, kind.__bases__, dict(kind.__dict__))
    with torch.enable_grad():
        parametrize.remove_parametrizations(module, key)
    module._buffers.pop(key, None)  # where no gradient is wanted torch leaves a buffer
    module._parameters[key] = weight
    if isinstance(module, nn.LSTM) and not parametrize.is_parametrized(module):
        module._init_flat_weights()


def _build_once_a_forward(module: nn.Module) -> None:
    """Have a forward of torch's that reads a weight several times build H once."""
    kind: Any = type(module)  # the class that parametrize made for this module alone
    base = kind.__bases__[0]

    @functools.wraps(base.forward)
    def forward(self: nn.Module, *args: Any, **options: Any) -> Any:
        plain = _with_weights(self)
        before = dict(plain.__dict__)
        answer = base.forward(plain, *args, **options)
        own = plain.__dict__.items()  # attributes that a subclass sets, such as its attention maps
        self.__dict__.update({name: value for name, value in own if value is not before.get(name, before)})
        return answer

    def apply(self: nn.Module, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        base._apply(self, fn, recurse)
        forget(self)
        return self

    def forget(self: nn.Module) -> None:
        if isinstance(self, nn.LSTM):  # which keeps its weights in a list of its own: H, and its graph
            self._flat_weights = [None] * len(self._flat_weights_names)

    kind.forward, kind._apply = forward, apply
    if isinstance(module, nn.LSTM):
        kind.flatten_parameters = lambda self: None
    forget(module)


def _with_weights(module: nn.Module) -> nn.Module:
    """Return a module of torch's class that holds H of each parametrized weight and shares all else.

    It is another object at each call, so threads may call one module at once.
    """
    kind: Any = type(module)
    parts: dict[str, Any] = dict(module._modules)
    made = parts.pop("parametrizations", None) or {}
    plain: Any = object.__new__(kind.__bases__[0] if made else kind)
    plain.__dict__.update(
        module.__dict__,
        _parameters=module._parameters | {name: getattr(module, name) for name in made},
        _modules={
            name: _with_weights(part) if part is not None and parametrize.is_parametrized(part) else part
            for name, part in parts.items()
        },
    )
    if isinstance(module, nn.LSTM):
        weights = [getattr(plain, name) for name in module._flat_weights_names]
        plain.__dict__.update(
            _flat_weights=weights, _flat_weight_refs=[None] * len(weights), flatten_parameters=lambda: None
        )
    return cast("nn.Module", plain)


def _weights(module: nn.Module) -> list[tuple[nn.Module, str]]:
    if isinstance(module, nn.LSTM):
        return [(module, key) for key in module._flat_weights_names if key.startswith("weight")]
    if isinstance(module, nn.MultiheadAttention):
        keys = ["in_proj_weight"] if module._qkv_same_embed_dim else [f"{part}_proj_weight" for part in "qkv"]
        return [*((module, key) for key in keys), (module.out_proj, "weight")]
    return [(module, "weight")]


def is_conv1d(module: nn.Module) -> bool:
    """Whether it is the linear map of `transformers` whose weight is transposed, converted or not."""
    kinds = type(module).__mro__
    return any(kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in kinds)


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield what could be converted; parts of an attention belong to it."""
    inside: set[int] = set()
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            inside.update(map(id, module.modules()))
            yield name, module
        elif id(module) not in inside and (isinstance(module, (nn.Linear, nn.Embedding, nn.LSTM)) or is_conv1d(module)):
            yield name, module


def _selected(name: str, module: nn.Module, select: Selection) -> bool:
    if select is None:
        return True
    if isinstance(select, str):
        return fnmatchcase(name, select)
    if isinstance(select, re.Pattern):
        return select.search(name) is not None
    if callable(select):
        return bool(select(name, module))
    return any(_selected(name, module, each) for each in select)


def to_dense(model: nn.Module, *, inplace: bool = False) -> nn.Module:
    """Replace every PHM map of a model by the dense layer of the same function, to rounding.

    ``PHMLinear`` becomes ``nn.Linear``, ``PHMEmbedding`` becomes ``nn.Embedding``, and what :func:`phmctl.convert`
    parametrized has a plain weight again. A ``PHMLSTM`` stays what its model calls, with dense maps;
    ``PHMLSTM.to_dense`` makes an ``nn.LSTM`` of it. What is shared stays shared: a module with several names, a table
    that is the generator's weight too, a bias. What is frozen stays frozen. These layers' hooks are lost, and the
    forward of a subclass.

    Args:
        model: any module; it may be such a layer itself.
        inplace: change `model` itself, where a copy would be too large. A root that is such a layer cannot be
            replaced in place: use the result.

    Returns:
        the model, or its copy, in the same mode; ``nn.Linear`` for a ``PHMLinear``.
    """
    model = _own(model, inplace)
    replaced: dict[int, nn.Module] = {}
    weights: dict[tuple[int, ...], nn.Parameter] = {}  # by the ids of the tensors that a weight is made of
    for module in list(model.modules()):
        if isinstance(module, (StructuredWeight, NarrowEmbedding)):
            replaced[id(module)] = _dense(module, weights)
        elif parametrize.is_parametrized(module):
            for key, made in list(module.parametrizations.items()):  # type: ignore[union-attr, operator]
                if any(isinstance(part, Kronecker) for part in made):
                    sources = list(made.parameters())
                    with torch.no_grad():
                        weight = nn.Parameter(getattr(module, key).clone(), any(part.requires_grad for part in sources))
                    _restore(module, key, weights.setdefault(tuple(map(id, sources)), weight))
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):  # not named_children(), which leaves out repetitions
            if id(child) in replaced:
                setattr(parent, name, replaced[id(child)])
    return replaced.get(id(model), model)


@torch.no_grad()
def _dense(module: StructuredWeight | NarrowEmbedding, weights: dict[tuple[int, ...], nn.Parameter]) -> nn.Module:
    """Return a module's dense layer; maps made of the same tensors get the same weight."""
    weight, bias = module._parameters.get("weight"), getattr(module, "bias", None)
    if bias is not None and not isinstance(bias, nn.Parameter):  # it is computed: a parametrization, a pruning
        learns = any(part.requires_grad for name, part in module.named_parameters() if "bias" in name)
        bias = nn.Parameter(bias.detach(), learns)
    padding = getattr(module, "padding_idx", None)
    sources = [part for name, part in module.named_parameters() if "bias" not in name.split(".")]
    if weight is None:  # with n = 1 it is there, and stays the same parameter
        with without_autocast(sources[0].device.type):
            weight = nn.Parameter(module.weight, any(part.requires_grad for part in sources))
    if padding is not None:  # a row of zeros, as its lookup gives them
        weight.data[padding] = 0
    same = weights.setdefault(tuple(map(id, sources)), weight)
    if same.is_meta or torch.equal(same, weight):  # not the same tensors by another parametrization
        weight = same
    dense: nn.Linear | nn.Embedding
    if isinstance(module, (PHMEmbedding, NarrowEmbedding)):
        dense = nn.Embedding(weight.shape[0], weight.shape[1], padding, _weight=weight)
    else:  # on meta no random numbers are drawn
        dense = nn.Linear(weight.shape[1], weight.shape[0], bias is not None, device="meta")
        dense.register_parameter("bias", bias)
    dense.weight = weight
    return dense.train(module.training)
