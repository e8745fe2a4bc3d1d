"""Structures of a weight: how H, (k, d) or (k, d, *kernel), is computed from parameters.

| structure | parameters | H |
|---|---|---|
| :class:`Dense` | weight | weight |
| :class:`KroneckerSum` | A and S, or S under a fixed rule | Σᵢ kron(A[i], S[i]) |
| :class:`FactorSum` | W, U, V and S | the same, with A made of factors |
| :class:`LowRank` | R and L | L R |

A structure holds sizes only. The parameters belong to a module, which passes them by name. Modules can share them, and
``torch.func``, parametrizations and pruning can replace them.

A weight that is computed at every use refuses to be written into, because the change would be lost
(:class:`ComputedWeight`).
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar, NoReturn

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phmctl.algebra.dimension import FIXED_DIMENSION, LEARNED
from phmctl.algebra.initialisation import (
    dense_variance,
    frame_scale,
    initialise_components_,
    initialise_dense_,
    initialise_factors_,
    initialise_rule_,
)
from phmctl.algebra.kronecker import check_values, fixed_rule, kronecker_sum, nearest_sum
from phmctl.algebra.modes import needs_plain_operations
from phmctl.algebra.rank_product import Factors, block_sums, rank_linear, recompose
from phmctl.errors import DimensionError, UserError

Tensors = Mapping[str, Tensor]
RULE_NAMES = ("A", "W", "U", "V")  # parameters of a learned rule, in either form
LEAF = "_phmctl_leaf"  # attribute of S within phmctl.step
PARAMETER_NAMES = ("weight", *RULE_NAMES, "S")  # parameters of dense weights and Kronecker sums


class Structure(ABC):
    """How H is computed from parameters."""

    gain: ClassVar[float] = 1.0  # factor of the learning rates, explained in phmctl.nn.rates

    @property
    def rule_names(self) -> tuple[str, ...]:
        """Names of the parameters that make a learned rule. The other parameters grow with H."""
        return ()

    @abstractmethod
    def shapes(self, rows: int, columns: int, *kernel: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter of a weight (rows, columns, ...). Weight decay applies to the last one."""

    @abstractmethod
    def compute(self, tensors: Tensors) -> Tensor:
        """Return H, computed from the parameters."""

    def dense(self, tensors: Tensors) -> Tensor:
        """Return H: the one that :func:`phmctl.step` keeps, if any, or else a computed one."""
        leaf = leaf_of(tensors)
        return self.compute(tensors) if leaf is None else leaf

    def apply(self, x: Tensor, tensors: Tensors, bias: Tensor | None) -> Tensor:
        """Return ``x Hᵀ + b`` without building H, if the structure allows it. (..., d) -> (..., k)."""
        return F.linear(x, self.dense(tensors), bias)

    @abstractmethod
    def initialise_(self, tensors: Tensors, scheme: str, fan_in: int, fan_out: int) -> None:
        """Draw the parameters in place, so that H has the variance of the dense scheme."""

    def scale(self, tensors: Tensors) -> float:
        """Return the root mean square of H's entries for the learning rates, of a Kronecker sum the expected one."""
        return rms(self.dense(tensors))

    @abstractmethod
    def initial_scales(self, variance: float, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        """Return the root mean square of each parameter as a multiple of H's, as drawn with this variance of H."""

    def nearest(self, weight: Tensor) -> dict[str, Tensor] | None:
        """Return the parameters whose H is nearest to a weight (k, d, ...), or None without a closed form."""
        return None


@dataclass(frozen=True)
class Dense(Structure):
    """H is the parameter."""

    def shapes(self, rows: int, columns: int, *kernel: int) -> dict[str, tuple[int, ...]]:
        return {"weight": (rows, columns, *kernel)}

    def compute(self, tensors: Tensors) -> Tensor:
        return tensors["weight"]

    def initialise_(self, tensors: Tensors, scheme: str, fan_in: int, fan_out: int) -> None:
        initialise_dense_(tensors["weight"], scheme, fan_in, fan_out)

    def initial_scales(self, variance: float, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        return {"weight": 1.0}


@dataclass(frozen=True)
class KroneckerSum(Structure):
    """``H = Σᵢ kron(A[i], S[i])`` with a rule A that is a parameter, or the constant of a fixed algebra.

    Further axes of S, the kernel of a convolution, are further axes of H. The `groups` of a convolution share the rule.
    """

    gain = 2.0
    n: int
    algebra: str
    groups: int = field(default=1, kw_only=True)

    @property
    def rule_names(self) -> tuple[str, ...]:
        return ("A",) if self.algebra == LEARNED else ()

    def shapes(self, rows: int, columns: int, *kernel: int) -> dict[str, tuple[int, ...]]:
        n = self.n
        rule: dict[str, tuple[int, ...]] = dict.fromkeys(self.rule_names, (n, n, n))
        return rule | {"S": (n, rows // n, columns // n, *kernel)}

    def rule(self, tensors: Tensors) -> Tensor:
        """Return A, (n, n, n)."""
        return tensors["A"] if self.algebra == LEARNED else _constant(self.algebra, tensors["S"])

    def compute(self, tensors: Tensors) -> Tensor:
        return kronecker_sum(self.rule(tensors), tensors["S"], self.groups)

    def initialise_(self, tensors: Tensors, scheme: str, fan_in: int, fan_out: int) -> None:
        self.initialise_rule_(tensors)
        initialise_components_(tensors["S"], self.rule(tensors), scheme, fan_in, fan_out)

    def initialise_rule_(self, tensors: Tensors) -> None:
        if self.algebra == LEARNED:
            initialise_rule_(tensors["A"])

    def scale(self, tensors: Tensors) -> float:
        return math.sqrt(self.n) * rms(self.rule(tensors)) * rms(tensors["S"])

    def initial_scales(self, variance: float, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        return dict.fromkeys(self.rule_names, 1 / math.sqrt(self.n * variance)) | {"S": 1.0}

    def nearest(self, weight: Tensor) -> dict[str, Tensor] | None:
        A, S, _ = nearest_sum(weight, self.n, self.algebra, self.groups)
        return dict.fromkeys(self.rule_names, A) | {"S": S}


@dataclass(frozen=True)
class FactorSum(KroneckerSum):
    """A Kronecker sum whose learned rule is held as factors, ``A[i, a, b] = Σᵣ W[i, r] U[a, r] V[r, b]``."""

    gain = 0.5
    rank: int

    @property
    def rule_names(self) -> tuple[str, ...]:
        return ("W", "U", "V")

    def shapes(self, rows: int, columns: int, *kernel: int) -> dict[str, tuple[int, ...]]:
        n, rank = self.n, self.rank
        return {"W": (n, rank), "U": (n, rank), "V": (rank, n), "S": (n, rows // n, columns // n, *kernel)}

    def rule(self, tensors: Tensors) -> Tensor:
        return recompose(Factors(tensors["W"], tensors["U"], tensors["V"]))

    def apply(self, x: Tensor, tensors: Tensors, bias: Tensor | None) -> Tensor:
        """Multiply by R blocks."""
        return rank_linear(x, block_sums(tensors["W"], tensors["S"]), tensors["U"], tensors["V"], bias)

    def initialise_rule_(self, tensors: Tensors) -> None:
        initialise_factors_(tensors["W"], tensors["U"], tensors["V"])

    def initial_scales(self, variance: float, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        return dict.fromkeys(self.rule_names, frame_scale(self.n, self.rank) / math.sqrt(variance)) | {"S": 1.0}

    def nearest(self, weight: Tensor) -> None:
        return None


@dataclass(frozen=True)
class LowRank(Structure):
    """``H = L R`` with R (m, d, *kernel) and L (k, m)."""

    gain = 0.5
    rank: int

    def shapes(self, rows: int, columns: int, *kernel: int) -> dict[str, tuple[int, ...]]:
        return {"R": (self.rank, columns, *kernel), "L": (rows, self.rank)}

    def compute(self, tensors: Tensors) -> Tensor:
        L, R = tensors["L"], tensors["R"]
        return (L @ R.flatten(1)).reshape(len(L), *R.shape[1:])

    def apply(self, x: Tensor, tensors: Tensors, bias: Tensor | None) -> Tensor:
        return F.linear(F.linear(x, tensors["R"]), tensors["L"], bias)

    def initialise_(self, tensors: Tensors, scheme: str, fan_in: int, fan_out: int) -> None:
        """Draw R and L so that the outputs have the variance that the dense scheme gives them."""
        R, L = tensors["R"], tensors["L"]
        output_variance = dense_variance(scheme, fan_in, fan_out) * fan_in
        for factor, variance in ((R, 1 / R.shape[1]), (L, output_variance / L.shape[1])):
            bound = math.sqrt(3 * variance)
            nn.init.uniform_(factor, -bound, bound)

    def initial_scales(self, variance: float, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        inputs = shapes["R"][1]
        return {"R": 1 / math.sqrt(inputs * variance), "L": math.sqrt(inputs / self.rank)}

    @torch.no_grad()
    def nearest(self, weight: Tensor, moments: Tensor | None = None) -> dict[str, Tensor]:
        """Return the truncated singular value decomposition, with L and R of the same norm.

        With `moments` the product is nearest on the inputs rather than in all entries: the second moments of a map's
        inputs, (d, d), or how often each row of a table is read, (k,).

        Raises DimensionError if the rank exceeds a side of the weight.
        """
        check_values(weight)
        matrix = weight.double().flatten(1)  # (k, d)
        if self.rank > min(matrix.shape):
            raise DimensionError(f"rank = {self.rank} exceeds the sides of the weight {tuple(weight.shape)}")
        columns = rows = None
        if moments is not None and moments.dim() == 2:
            columns = _square_root(moments)  # (d, d)
            matrix = matrix @ columns
        elif moments is not None:
            rows = (moments.double() + 1).sqrt()[:, None]  # (k, 1): rows that were never read count a little
            matrix = matrix * rows
        left, singular, right = torch.linalg.svd(matrix, full_matrices=False)  # (k, q), (q,), (q, d)
        scale = singular[: self.rank].sqrt()
        R = torch.where(scale > 0, scale, 1.0)[:, None] * right[: self.rank]  # (m, d); L = R = 0 never learn
        L = left[:, : self.rank] * scale  # (k, m)
        if columns is not None:
            R = torch.linalg.solve(columns, R, left=False)
        if rows is not None:
            L = L / rows
        balance = (R.norm() / L.norm()).sqrt() if L.any() else 1.0
        L, R = (L * balance).contiguous(), (R / balance).contiguous()
        return {"R": R.reshape(-1, *weight.shape[1:]).to(weight.dtype), "L": L.to(weight.dtype)}


def _square_root(moments: Tensor) -> Tensor:
    """Return the symmetric square root of second moments (d, d), made regular by a ten-thousandth of their mean."""
    moments = moments.double()
    floor = 1e-4 * moments.diagonal().mean().clamp(min=torch.finfo(torch.double).tiny)
    values, vectors = torch.linalg.eigh(moments)
    root: Tensor = vectors * (values.clamp(min=0) + floor).sqrt() @ vectors.mT
    return root


def structure_of(tensors: Tensors, algebra: str) -> Structure | None:
    """Return the structure of a weight's saved tensors, or None if they do not determine a weight.

    `algebra` is the algebra of the model, because a fixed rule is not saved.
    """
    if "S" not in tensors:
        return Dense() if "weight" in tensors else None
    n = len(tensors["S"])
    if "W" in tensors:
        return FactorSum(n, LEARNED, tensors["W"].shape[1])
    if "A" in tensors:
        return KroneckerSum(n, LEARNED)
    return KroneckerSum(n, algebra) if FIXED_DIMENSION.get(algebra) == n else None


def leaf_of(tensors: Tensors, *, lookup: bool = False) -> Tensor | None:
    """Return the H that :func:`phmctl.step` keeps for these tensors, or None. A `lookup` uses it only on CUDA."""
    entry = getattr(tensors.get("S"), LEAF, None)
    return None if entry is None or (lookup and not entry.grouped) else entry.leaf(tensors)


def rms(tensor: Tensor) -> float:
    """Return the root mean square of a tensor's entries. Raises UserError if they are on the meta device."""
    if tensor.is_meta:
        raise UserError("the weights are on the meta device; give them their values first")
    return tensor.detach().double().square().mean().sqrt().item()


def _constant(algebra: str, S: Tensor) -> Tensor:
    """Return the rule of a fixed algebra, on the device and in the dtype of S.

    Compilers, transformations and dispatch modes get new tensors, because a cached one would outlive them.
    """
    if needs_plain_operations() or torch._C._len_torch_dispatch_stack():
        return fixed_rule(algebra, device=S.device, dtype=S.dtype)
    return _cached(algebra, S.device, S.dtype)


@cache
@torch.inference_mode(False)  # autograd does not save inference tensors
def _cached(algebra: str, device: torch.device, dtype: torch.dtype) -> Tensor:
    return fixed_rule(algebra, device=device, dtype=dtype)


# -------------------------------------------------------------------------------- weights that refuse writes

_HARMLESS = {"requires_grad_", "detach_", "share_memory_"}  # change no value
_OPERATORS = {f"__i{name}__" for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")}


class ComputedWeight(Tensor):
    """H as ``layer.weight`` returns it: every operation takes it as a plain tensor and returns plain tensors.

    Writing into it, into ``data`` or into rows, as merging LoRA does, raises UserError.
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    def __getitem__(self, index: Any) -> Tensor:
        found = self.as_subclass(Tensor)[index]
        return found.as_subclass(ComputedWeight) if found._is_view() else found

    @property
    def data(self) -> Tensor:
        """The values without the graph."""
        return Tensor.data.__get__(self).as_subclass(ComputedWeight)  # type: ignore[attr-defined, no-any-return]

    @data.setter
    def data(self, value: Tensor) -> NoReturn:
        refuse_write()

    def detach(self) -> Tensor:
        """Return a plain tensor without the graph."""
        # nn.Parameter(H) takes the detached tensor of H and requires that it has H's class.
        self.__class__ = Tensor  # type: ignore[assignment]
        return Tensor.detach(self)

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        return self.as_subclass(Tensor).__deepcopy__(memo)  # type: ignore[no-untyped-call, no-any-return]

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.as_subclass(Tensor).__reduce_ex__(protocol)  # type: ignore[no-untyped-call]


def refuse_write(*_: object, **__: object) -> NoReturn:
    """Raise UserError."""
    raise UserError(
        "this weight is computed from others at every use, so that a change of it would be lost; change these, or"
        " call phmctl.to_dense(model) first, for example before LoRA is merged"
    )


for _name in dir(Tensor):  # the methods that write in place
    if _name in _OPERATORS | {"__setitem__"} or (_name.endswith("_") and _name[0] != "_" and _name not in _HARMLESS):
        setattr(ComputedWeight, _name, refuse_write)


def computed(weight: Tensor) -> Tensor:
    """Return a computed weight as a tensor that refuses writes. Compilers and other modes get it as it is."""
    if type(weight) is not Tensor or needs_plain_operations() or torch._C._len_torch_dispatch_stack():
        return weight
    return weight.as_subclass(ComputedWeight)
