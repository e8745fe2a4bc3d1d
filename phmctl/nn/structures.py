"""Structures of a weight: how H, (k, d) or (k, d, *kernel), is computed from parameters.

| structure | parameters | H |
|---|---|---|
| :class:`Dense` | weight | weight |
| :class:`KroneckerSum` | A and S, or S under a fixed rule | Σᵢ kron(A[i], S[i]) |
| :class:`FactorSum` | W, U, V and S | the same; A is made of factors |
| :class:`ThinFactors` | R and L | L P R, block-diagonal R and L, a permutation P |

A structure holds sizes only. The parameters belong to a module, which passes them by name: modules can share them, and
``torch.func``, parametrizations and pruning can replace them.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phmctl.algebra.bilinear import Factors, decompose, fixed_factors, recompose
from phmctl.algebra.initialisation import (
    dense_variance,
    frame_scale,
    initialise_components_,
    initialise_dense_,
    initialise_factors_,
    initialise_rule_,
)
from phmctl.algebra.kronecker import LEARNED, check_algebra, fixed_rule, kronecker_sum, nearest_sum
from phmctl.algebra.modes import needs_plain_operations
from phmctl.algebra.rank_product import block_sums, rank_linear
from phmctl.dimension import FIXED_DIMENSION, WITH_FACTORS
from phmctl.errors import RankError, UserError

Tensors = Mapping[str, Tensor]
T = TypeVar("T")
RULE_NAMES = ("A", "W", "U", "V")  # parameters of a learned rule, in either form
LEAF = "_phmctl_leaf"  # attribute of S within phmctl.step
PARAMETER_NAMES = ("weight", *RULE_NAMES, "S")  # of dense weights and Kronecker sums
NEEDS_FACTORS = (
    "execution 'rank' needs the factors of a rule with n > 1: pass parametrization='factors' or call layer.to_factors()"
)


class Structure(ABC):
    """How H is computed from parameters."""

    gain: ClassVar[float] = 1.0  # factor of the learning rates; phmctl.nn.tuning explains the values

    @property
    def rule_names(self) -> tuple[str, ...]:
        """Names of the parameters that make a learned rule; the other parameters grow with H."""
        return ()

    @abstractmethod
    def shapes(self, rows: int, columns: int, *kernel: int) -> dict[str, tuple[int, ...]]:
        """Return the shape of each parameter of a weight (rows, columns, ...). Weight decay applies to the last one."""

    @abstractmethod
    def dense(self, tensors: Tensors) -> Tensor:
        """Return H."""

    def apply(self, x: Tensor, tensors: Tensors, bias: Tensor | None) -> Tensor:
        """Return ``x Hᵀ + b`` without building H, if the structure allows it. (..., d) -> (..., k)."""
        return F.linear(x, self.dense(tensors), bias)

    @abstractmethod
    def initialise_(self, tensors: Tensors, scheme: str, fan_in: int, fan_out: int) -> None:
        """Draw the parameters in place, so that H has the variance of the dense scheme."""

    def scale(self, tensors: Tensors) -> float:
        """Return the root mean square of the entries of H, for the learning rates."""
        return rms(self.dense(tensors))

    @abstractmethod
    def initial_scales(self, variance: float, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        """Return the root mean square of each parameter as a multiple of H's, as drawn with this variance of H."""

    def nearest(self, weight: Tensor) -> dict[str, Tensor] | None:
        """Return the parameters whose H is nearest to a weight (k, d, ...), or None without a closed form."""
        return None

    def adapt(self, rule: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return a saved learned rule (A, or W, U and V) in this structure's form, if it is in the other form."""
        return rule


@dataclass(frozen=True)
class Dense(Structure):
    """H is the parameter."""

    def shapes(self, rows: int, columns: int, *kernel: int) -> dict[str, tuple[int, ...]]:
        return {"weight": (rows, columns, *kernel)}

    def dense(self, tensors: Tensors) -> Tensor:
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
        rule: dict[str, tuple[int, ...]] = dict.fromkeys(self.rule_names, (self.n, self.n, self.n))
        return rule | {"S": (self.n, rows // self.n, columns // self.n, *kernel)}

    def rule(self, tensors: Tensors) -> Tensor:
        """Return A, (n, n, n)."""
        return tensors["A"] if self.algebra == LEARNED else _constant(fixed_rule, self.algebra, tensors["S"])

    def factors(self, tensors: Tensors) -> Factors | None:
        """Return the factors of the rule, or None if only a decomposition would find them."""
        return _constant(fixed_factors, self.algebra, tensors["S"]) if self.algebra in WITH_FACTORS else None

    def dense(self, tensors: Tensors) -> Tensor:
        leaf = leaf_of(tensors)
        return self.compute(tensors) if leaf is None else leaf

    def compute(self, tensors: Tensors) -> Tensor:
        """Return H, computed from the parameters."""
        return kronecker_sum(self.rule(tensors), tensors["S"], self.groups)

    def apply(self, x: Tensor, tensors: Tensors, bias: Tensor | None) -> Tensor:
        """Multiply by R blocks. Raises RankError if the factors are not known."""
        factors = self.factors(tensors)
        if factors is None:
            raise RankError(NEEDS_FACTORS)
        return rank_linear(x, block_sums(factors.W, tensors["S"]), factors.U, factors.V, bias)

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

    def adapt(self, rule: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.algebra != LEARNED or not rule.keys() >= {"W", "U", "V"}:
            return rule
        return {"A": recompose(Factors(rule["W"], rule["U"], rule["V"]))}


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
        return recompose(self.factors(tensors))

    def factors(self, tensors: Tensors) -> Factors:
        return Factors(tensors["W"], tensors["U"], tensors["V"])

    def initialise_rule_(self, tensors: Tensors) -> None:
        initialise_factors_(tensors["W"], tensors["U"], tensors["V"])

    def initial_scales(self, variance: float, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        return dict.fromkeys(self.rule_names, frame_scale(self.n, self.rank) / math.sqrt(variance)) | {"S": 1.0}

    def nearest(self, weight: Tensor) -> None:
        return None

    def adapt(self, rule: dict[str, Tensor]) -> dict[str, Tensor]:
        if "A" not in rule or len(rule["A"]) != self.n:
            return rule
        return decompose(rule["A"], self.rank)._asdict()


@dataclass(frozen=True)
class ThinFactors(Structure):
    """``H = L P R``: R (N, m/N, d/N) and L (N, k/N, m/N) have N diagonal blocks, P interleaves the blocks.

    With one block H has rank m at most. With several it is ``monarch`` (Dao et al. 2022, "Monarch: Expressive
    Structured Matrices for Efficient and Accurate Training", §3.1; its appendix has oblong maps).
    """

    gain = 0.5
    blocks: int
    inner: int

    def shapes(self, rows: int, columns: int, *kernel: int) -> dict[str, tuple[int, ...]]:
        blocks, width = self.blocks, self.inner // self.blocks
        return {"R": (blocks, width, columns // blocks), "L": (blocks, rows // blocks, width)}

    def dense(self, tensors: Tensors) -> Tensor:
        R = tensors["R"]
        identity = torch.eye(self.blocks * R.shape[2], device=R.device, dtype=R.dtype)
        return self.apply(identity, tensors, None).T

    def apply(self, x: Tensor, tensors: Tensors, bias: Tensor | None) -> Tensor:
        R, L = tensors["R"], tensors["L"]
        if self.blocks == 1:
            return F.linear(F.linear(x, R[0]), L[0], bias)
        flat = x.reshape(-1, self.blocks, R.shape[2])  # (T, N, d/N)
        h = flat.transpose(0, 1) @ R.mT  # (N, T, m/N)
        h = h.permute(1, 2, 0).reshape(-1, self.blocks, L.shape[2])  # (T, N, m/N): entry j of block i goes to jN + i
        y = (h.transpose(0, 1) @ L.mT).transpose(0, 1).reshape(*x.shape[:-1], -1)  # (..., k)
        return y if bias is None else y + bias.to(y.dtype)  # in autocast's dtype, as F.linear

    def initialise_(self, tensors: Tensors, scheme: str, fan_in: int, fan_out: int) -> None:
        """Draw R and L so that the outputs have the variance that the dense scheme gives them."""
        R, L = tensors["R"], tensors["L"]
        output_variance = dense_variance(scheme, fan_in, fan_out) * fan_in
        for factor, variance in ((R, 1 / R.shape[2]), (L, output_variance / L.shape[2])):
            bound = math.sqrt(3 * variance)
            nn.init.uniform_(factor, -bound, bound)

    def initial_scales(self, variance: float, shapes: Mapping[str, torch.Size]) -> dict[str, float]:
        inputs, width = shapes["R"][2], shapes["L"][2]  # of R and of L
        return {"R": 1 / math.sqrt(inputs * variance), "L": math.sqrt(inputs / width)}


def phm_structure(n: int, algebra: str, rank: int | None = None, groups: int = 1) -> Structure:
    """Return the structure of a PHM weight; a learned rule with a `rank` is held as factors.

    Raises:
        DimensionError: n is not the algebra's dimension.
        UserError: no algebra has this name; or a rank of a rule that is not learned, or below 1.
    """
    check_algebra(algebra, n)
    if rank is not None and (algebra != LEARNED or n == 1):
        raise UserError(f"rank = {rank}: only algebra 'phm' with n > 1 takes a rank, not {algebra!r} with n = {n}")
    if rank is not None and rank < 1:
        raise UserError(f"rank = {rank}: the rank must be at least 1")
    if n == 1:
        return Dense()
    return KroneckerSum(n, algebra, groups=groups) if rank is None else FactorSum(n, algebra, rank, groups=groups)


def structure_of(tensors: Tensors, algebra: str) -> Structure | None:
    """Return the structure of a weight's saved tensors, or None if they do not determine a weight.

    `algebra` is the algebra of their model, because a fixed rule is not saved.
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
    """Return the H that :func:`phmctl.step` keeps for these tensors, or None; for a `lookup` of rows only on CUDA."""
    entry = getattr(tensors["S"], LEAF, None)
    return None if entry is None or (lookup and not entry.grouped) else entry.leaf(tensors)


def rms(tensor: Tensor) -> float:
    """Return the root mean square of a tensor's entries. Raises UserError if they are on the meta device."""
    if tensor.is_meta:
        raise UserError("the weights are on the meta device; give them their values first")
    return tensor.detach().double().square().mean().sqrt().item()


def _constant(build: Callable[..., T], algebra: str, S: Tensor) -> T:
    """Return the rule or the factors of a fixed algebra, on the device and in the dtype of S.

    Compilers, transformations and dispatch modes get new tensors, because a cached one would outlive them.
    """
    if needs_plain_operations() or torch._C._len_torch_dispatch_stack():
        return build(algebra, device=S.device, dtype=S.dtype)
    constant: T = _cached(build, algebra, S.device, S.dtype)
    return constant


@cache
@torch.inference_mode(False)  # autograd does not save inference tensors
def _cached(build: Callable[..., T], algebra: str, device: torch.device, dtype: torch.dtype) -> T:
    return build(algebra, device=device, dtype=dtype)
