"""From a dense model to PHM maps: each weight becomes the nearest sum of Kronecker products (:func:`convert`)."""

import copy
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from phmctl.algebra.rules import ALGEBRAS, LEARNED
from phmctl.dimension import FIXED_DIMENSION
from phmctl.errors import PhmctlError, UserError, check_known
from phmctl.nn.embedding import PHMEmbedding
from phmctl.nn.kronecker_weight import learn_as
from phmctl.nn.linear import RULE, PHMLinear
from phmctl.nn.lstm import GATES, PHMLSTM, LSTMLayer
from phmctl.nn.multihead import PHMMultiheadAttention

DENSE = (nn.Linear, nn.Embedding, nn.LSTM, nn.MultiheadAttention)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
Selection = str | re.Pattern[str] | Callable[[str, nn.Module], bool] | Sequence[Any] | None


@dataclass(frozen=True, slots=True)
class Converted:
    """What became of one module.

    Attributes:
        name: in the model.
        kind: its class.
        shape: of its weight, (k, d).
        before: numbers of its weight.
        after: numbers of A and S, or as before where it was skipped.
        error: ‖W − H‖ / ‖W‖, Frobenius norms; None where it was skipped.
        skipped: why it was, or None.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    before: int
    after: int
    error: float | None
    skipped: str | None = None


@dataclass(slots=True)
class Conversion:
    """The report of :func:`convert`; ``print(report)`` is a table.

    Attributes:
        rows: a row for each module that was selected.
        before: parameters of the model, a shared one once.
        after: those of the converted one.
    """

    rows: list[Converted] = field(default_factory=list)
    before: int = 0
    after: int = 0

    @property
    def saved(self) -> int:
        """How many parameters fewer there are."""
        return self.before - self.after

    def __str__(self) -> str:
        head = [("module", "kind", "shape", "before", "after", "error")]
        lines = head + [_cells(row) for row in self.rows]
        widths = [max(len(line[column]) for line in lines) for column in range(len(head[0]))]
        table = ["  ".join(map(str.ljust, line, widths)).rstrip() for line in lines]
        share = self.after / self.before if self.before else 1.0
        return "\n".join([*table, f"{self.before:,} → {self.after:,} parameters ({share:.1%})"])


def _cells(row: Converted) -> tuple[str, ...]:
    error = f"{row.error:.4f}" if row.error is not None else f"skipped: {row.skipped}"
    return row.name, row.kind, "×".join(map(str, row.shape)), f"{row.before:,}", f"{row.after:,}", error


@torch.no_grad()
def convert(
    model: nn.Module,
    n: int | None = None,
    *,
    select: Selection = None,
    algebra: str = LEARNED,
    parametrization: str = RULE,
    rank: int | None = None,
    inplace: bool = False,
) -> tuple[nn.Module, Conversion]:
    """Replace the dense layers of any model by the nearest PHM maps; :func:`phmctl.to_dense` goes back.

    ``nn.Linear`` (and ``Conv1D`` of `transformers`) becomes ``PHMLinear``, ``nn.Embedding`` a ``PHMEmbedding``,
    ``nn.LSTM(batch_first=True)`` a ``PHMLSTM``, and ``nn.MultiheadAttention`` one whose projections are PHM. Weights
    that are one parameter stay one: they become one A and one S, and a table among them looks its padding row up as H
    has it. What cannot be converted stays as it is, with the reason.

    Args:
        model: any module, or such a layer itself.
        n: the PHM hyperparameter; a fixed algebra implies it.
        select: which modules: a glob over their names (``"encoder.*.fc?"``), a compiled regular expression that is
            searched in them, a function of name and module, or several of these; None takes all.
        algebra: ``phm``, or a fixed algebra, whose S is found by least squares.
        parametrization: ``rule`` or ``factors``, of linear maps.
        rank: of the factors; a nearest rule wants the generic one.
        inplace: change `model` itself instead of a copy.

    Returns:
        the converted model, and the report.

    Raises:
        UserError: there is neither n nor a fixed algebra; an argument is none that a layer can have; or no module is
            selected. Nothing is changed then.
    """
    work = _Work(_order(n, algebra, parametrization, rank), algebra, parametrization, rank)
    report = Conversion(before=_count(model))
    model = model if inplace else copy.deepcopy(model)
    chosen = {id(module): (name, module) for name, module in _candidates(model) if _selected(name, module, select)}
    if not chosen:
        raise UserError("no module is selected to convert; select takes names as model.named_modules() gives them")
    made = {key: work.attempt(module) for key, (_, module) in chosen.items()}
    shares = {key for key, (new, *_) in made.items() if isinstance(new, (PHMLinear, PHMEmbedding))}
    tied = _tied(model)
    replaced: dict[int, nn.Module] = {}
    for key, (name, module) in chosen.items():
        new, error, reason = made[key]
        other = None if new is None else _outside(module, tied, shares)
        if other is not None:
            new, error, reason = None, None, f"its weight is also that of {other}, which is not converted with it"
        if new is not None:
            replaced[key] = new
        report.rows.append(_row(name, module, new, error, reason))
    root = _replace(model, replaced)
    report.after = _count(root)
    return root, report


def _order(n: int | None, algebra: str, parametrization: str, rank: int | None) -> int:
    """Return n; a layer without numbers refuses (UserError) what no layer can be."""
    check_known("algebra", algebra, ALGEBRAS)
    order = FIXED_DIMENSION.get(algebra) if n is None else n
    if order is None:
        raise UserError("convert wants n, or a fixed algebra that implies it")
    size = max(order, 1)
    PHMLinear(size, size, n=order, algebra=algebra, parametrization=parametrization, rank=rank, device="meta")
    return order


class _Work:
    """Makes the PHM layer of a dense one; layers of one weight get one A and one S."""

    def __init__(self, n: int, algebra: str, parametrization: str, rank: int | None) -> None:
        self.n, self.algebra = n, algebra
        self.options: dict[str, Any] = {"algebra": algebra, "parametrization": parametrization, "rank": rank}
        self.done: dict[int, tuple[PHMLinear | PHMEmbedding, float]] = {}  # by the weight's id

    def attempt(self, module: nn.Module) -> tuple[nn.Module | None, float | None, str | None]:
        """Return the PHM layer and its error; where it cannot be, the reason alone."""
        try:
            _check_plain(module)
            new, error = self._made(module)
        except PhmctlError as problem:
            return None, None, str(problem)
        return new.train(module.training), error, None

    def _made(self, module: nn.Module) -> tuple[nn.Module, float]:
        if isinstance(module, nn.MultiheadAttention):
            return PHMMultiheadAttention.from_dense(module, self.n, algebra=self.algebra)
        if isinstance(module, nn.LSTM):
            return _lstm(module, self.n, self.algebra)
        if isinstance(module, nn.Embedding):
            return self._tied(module.weight, *PHMEmbedding.from_dense(module, self.n, algebra=self.algebra))
        dense = module if isinstance(module, nn.Linear) else _of_conv1d(module)
        layer, error = PHMLinear.from_dense(dense, self.n, **self.options)
        if dense is not module:
            layer.dense_type = type(module)
        layer.bias = dense.bias
        return self._tied(module.weight, layer, error)  # type: ignore[arg-type]

    def _tied(self, weight: Tensor, layer: Any, error: float) -> tuple[nn.Module, float]:
        """Let a layer share what another layer of the same weight has."""
        learn_as(layer, weight)
        first, error = self.done.setdefault(id(weight), (layer, error))
        if first is not layer:
            for part in (first, layer):
                if isinstance(part, PHMEmbedding):
                    part.padding_idx = None  # a row of H that another layer reads as it is
            _share(layer, first)
        return layer, error


def _share(layer: PHMLinear | PHMEmbedding, first: PHMLinear | PHMEmbedding) -> None:
    """Let a layer have another's A and S, or the factors that it holds."""
    own = {name: part for name, part in layer._parameters.items() if name == "bias"}
    layer._parameters = {name: part for name, part in first._parameters.items() if name != "bias"} | own
    layer._holds_factors = first._holds_factors


def _check_plain(module: nn.Module) -> None:
    """Refuse (UserError) a module that does, or holds, more than the base class whose place a PHM layer takes."""
    base = next((kind for kind in DENSE if isinstance(module, kind)), type(module))
    if type(module).forward is not base.forward or "forward" in vars(module):
        raise UserError(f"its forward is not that of {base.__name__}")
    parts = list(module.modules())
    if any(getattr(part, hooks) for part in parts for hooks in HOOKS):
        raise UserError("it has hooks, which would be lost; remove them before, and register them on the new layer")
    if any(map(is_parametrized, parts)):
        raise UserError("it has parametrizations, which would be lost; remove_parametrizations makes it plain")


def _of_conv1d(module: nn.Module) -> nn.Linear:
    """Return the ``nn.Linear`` of a ``Conv1D`` of `transformers`, whose weight is (d, k)."""
    weight: Tensor = module.weight.t()  # type: ignore[operator]
    dense = nn.Linear(weight.shape[1], weight.shape[0], bias=True, device="meta", dtype=weight.dtype)
    dense.weight, dense.bias = nn.Parameter(weight), module.bias  # type: ignore[assignment]
    return dense


def _lstm(module: nn.LSTM, n: int, algebra: str) -> tuple[PHMLSTM, float]:
    """Return the PHM-LSTM nearest to an LSTM, a map a gate, and the relative error over all its weights."""
    lacks = [
        word
        for word, has in (
            ("bidirectional", module.bidirectional),
            ("proj_size", module.proj_size),
            ("dropout between layers", module.dropout),
            ("batch_first=False", not module.batch_first),
        )
        if has
    ]
    if lacks:
        raise UserError(f"PHMLSTM has no {' and no '.join(lacks)}")
    sizes = module.input_size, module.hidden_size
    lstm = PHMLSTM(*sizes, n=n, algebra=algebra, num_layers=module.num_layers, bias=module.bias, device="meta")
    lstm = lstm.to(module.weight_ih_l0.dtype).to_empty(device=module.weight_ih_l0.device)  # type: ignore[arg-type]
    lstm.dense_type = nn.LSTM
    left = whole = 0.0
    for index, layer in enumerate(lstm.layers):
        for maps, letters in ((layer.from_input, "ih"), (layer.from_hidden, "hh")):
            stacked = getattr(module, f"weight_{letters}_l{index}")
            learn_as(maps, stacked)  # type: ignore[arg-type]
            i, f, candidate, o = stacked.chunk(4)
            for gate, weight in zip(GATES, (f, i, o, candidate), strict=True):
                error = maps[gate].set_nearest(weight)  # type: ignore[index, union-attr]
                left, whole = left + (error * weight.norm().item()) ** 2, whole + weight.norm().item() ** 2
        if module.bias:
            _copy_biases(layer, getattr(module, f"bias_ih_l{index}"), getattr(module, f"bias_hh_l{index}"))  # type: ignore[arg-type]
    return lstm, (left / whole) ** 0.5 if whole else 0.0


def _copy_biases(layer: LSTMLayer, one: Tensor, other: Tensor) -> None:
    i, f, candidate, o = (one + other).chunk(4)
    for gate, part in zip(GATES, (f, i, o, candidate), strict=True):
        bias: Tensor = layer.from_input[gate].bias  # type: ignore[assignment]
        bias.copy_(part).requires_grad_(one.requires_grad or other.requires_grad)


def _candidates(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield what could be converted; parts of an attention belong to it."""
    inside: set[int] = set()
    for name, module in model.named_modules():
        if id(module) in inside or isinstance(module, (PHMLinear, PHMEmbedding, PHMLSTM, PHMMultiheadAttention)):
            inside.update(map(id, module.modules()))
        elif isinstance(module, nn.MultiheadAttention):
            inside.update(map(id, module.modules()))
            yield name, module
        elif isinstance(module, DENSE) or _is_conv1d(module):
            yield name, module


def _is_conv1d(module: nn.Module) -> bool:
    """Whether this is the Conv1D of `transformers`, a linear map with a transposed weight; without importing that."""
    kind = type(module)
    return kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.")


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


def _tied(model: nn.Module) -> dict[int, list[tuple[str, int]]]:
    """Return by a weight's id the names and ids of the modules that have it, where they are several."""
    users: dict[int, list[tuple[str, int]]] = {}
    for name, module in model.named_modules():
        for parameter in module._parameters.values():
            if parameter is not None:
                users.setdefault(id(parameter), []).append((name, id(module)))
    return {key: each for key, each in users.items() if len(each) > 1}


def _outside(module: nn.Module, tied: dict[int, list[tuple[str, int]]], shares: set[int]) -> str | None:
    """Return the name of a module that has one of this one's weights and will not share the new one, if any."""
    own = shares if id(module) in shares else set(map(id, module.modules()))
    weights = [part for key, part in module.named_parameters() if "bias" not in key]
    users = [user for part in weights for user in tied.get(id(part), [])]
    return next((name for name, key in users if key not in own), None)


def _replace(model: nn.Module, replaced: dict[int, nn.Module]) -> nn.Module:
    for parent in list(model.modules()):
        for name, child in list(parent._modules.items()):
            if id(child) in replaced:
                setattr(parent, name, replaced[id(child)])
    return replaced.get(id(model), model)


def _row(name: str, module: nn.Module, new: nn.Module | None, error: float | None, reason: str | None) -> Converted:
    weights = [part for key, part in module.named_parameters() if "bias" not in key]
    before = sum(part.numel() for part in weights)
    after = before if new is None else sum(part.numel() for key, part in new.named_parameters() if "bias" not in key)
    shape = getattr(module, "weight", weights[0]).shape  # parametrised: not that of a parameter
    return Converted(name, type(module).__name__, tuple(shape), before, after, error, reason)


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
