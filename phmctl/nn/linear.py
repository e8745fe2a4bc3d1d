"""Linear maps: the PHM layer, a drop-in for ``nn.Linear`` with about 1/n of its parameters (Zhang et al. 2021, §3.2).

And two thin maps in a row, which people take in its place at the same cost, to compare with.
"""

import math
from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phmctl.algebra.bilinear import Factors, decompose, fixed_factors, recompose
from phmctl.algebra.initialisation import (
    dense_variance,
    initialise_components_,
    initialise_dense_,
    initialise_factors_,
    initialise_rule_,
    natural_rank,
)
from phmctl.algebra.kronecker import LEARNED, check_algebra, fixed_rule, kronecker_sum
from phmctl.algebra.rank_product import block_sums, rank_linear
from phmctl.dimension import WITH_FACTORS, check_divides
from phmctl.errors import RankError, UserError, check_known

DENSE, RANK = EXECUTIONS = ("dense", "rank")
RULE, FACTORS = PARAMETRIZATIONS = ("rule", "factors")


class KroneckerWeight(nn.Module):
    """A weight ``H = Σᵢ kron(A[i], S[i])`` of shape (rows, columns): what a linear map and a table share.

    :class:`PHMLinear` says which of its tensors are parameters; a fixed rule is a buffer that no checkpoint holds. A
    rule that is held as factors has A computed from them. A checkpoint of either form loads as either.
    """

    A: Tensor
    S: Tensor
    weight: Tensor

    def __init__(
        self,
        rows: int,
        columns: int,
        n: int,
        algebra: str,
        rank: int | None = None,
        **factory: Any,
    ) -> None:
        """Allocate the parameters; the subclass initialises them. A learned rule of a `rank` is held as factors."""
        super().__init__()
        check_algebra(algebra, n)
        if rank is not None and (algebra != LEARNED or n == 1 or rank < 1):
            raise UserError(
                f"rank = {rank}: only algebra 'phm' with n > 1 has one, of 1 or more, not {algebra!r}, n = {n}"
            )
        self.n, self.algebra = n, algebra
        self.holds_factors = rank is not None
        self.owns_rule = True  # it is no other's
        if n == 1:
            self.weight = nn.Parameter(torch.empty(rows, columns, **factory))
            return
        if rank is not None:
            shapes = (n, rank), (n, rank), (rank, n)
            self.W, self.U, self.V = (nn.Parameter(torch.empty(*shape, **factory)) for shape in shapes)
        elif algebra == LEARNED:
            self.A = nn.Parameter(torch.empty(n, n, n, **factory))
        self.S = nn.Parameter(torch.empty(n, rows // n, columns // n, **factory))
        self._set_fixed_rule()

    def __getattr__(self, name: str) -> Any:
        if name == "weight" and self.__dict__.get("n", 1) > 1:
            return kronecker_sum(self.A, self.S)
        if name == "A" and self.__dict__.get("holds_factors"):
            return recompose(Factors(self.W, self.U, self.V))
        return super().__getattr__(name)

    def __setattr__(self, name: str, value: Any) -> None:
        if (name == "weight" and self.__dict__.get("n", 1) > 1) or (name == "A" and self.__dict__.get("holds_factors")):
            raise UserError(f"{name} is computed: set {'S and the rule' if name == 'weight' else 'W, U and V'}")
        if name == "execution":
            check_known("execution", str(value), EXECUTIONS)
        super().__setattr__(name, value)

    @property
    def factors(self) -> Factors | None:
        """The rule's factors: parameters, or the exact table of complex numbers and quaternions; None for any other."""
        if self.n > 1 and (self.holds_factors or self.algebra in WITH_FACTORS):
            return Factors(self.W, self.U, self.V)
        return None

    def initialise(self, scheme: str, fan_in: int, fan_out: int) -> None:
        """Draw the parameters anew, so that H has the variance of the dense scheme."""
        if next(self.parameters()).is_meta:
            return  # nothing to draw; torch would import its compiler to do so
        if self.n == 1:
            initialise_dense_(self.weight, scheme, fan_in, fan_out)
            return
        if self.holds_factors:
            initialise_factors_(self.W, self.U, self.V)
        elif self.algebra == LEARNED:
            initialise_rule_(self.A)
        initialise_components_(self.S, self.A, scheme, fan_in, fan_out)

    def share_rule(self, other: "KroneckerWeight") -> None:
        """Take another's learned rule for one's own: A, or the factors, is one parameter of both."""
        for name in "WUV" if self.holds_factors else "A":
            setattr(self, name, getattr(other, name))
        self.owns_rule = self is other

    @torch.inference_mode(False)  # a model that moves within inference mode may learn later
    def _set_fixed_rule(self) -> None:
        """Make the buffers of a fixed algebra, where S is: no checkpoint holds them, and to_empty() clears them."""
        if self.n == 1 or self.algebra == LEARNED:
            return
        factory: dict[str, Any] = {"device": self.S.device, "dtype": self.S.dtype}
        self.register_buffer("A", fixed_rule(self.algebra, **factory), persistent=False)
        if self.algebra in WITH_FACTORS:
            for name, part in zip("WUV", fixed_factors(self.algebra, **factory), strict=True):
                self.register_buffer(name, part, persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        self._set_fixed_rule()
        return self

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Load a rule that was saved in the other form, as A or as factors, in the form that this layer holds."""
        A, parts = f"{prefix}A", [f"{prefix}{name}" for name in "WUV"]
        if self.holds_factors and A in state and len(state[A]) == self.n:
            state.update(zip(parts, decompose(state.pop(A), self.V.shape[0]), strict=True))
        elif "A" in self._parameters and all(part in state for part in parts):
            state[A] = recompose(Factors(*(state.pop(part) for part in parts)))
        super()._load_from_state_dict(state, prefix, *rest)
        self._set_fixed_rule()  # assign=True may have brought an S of another dtype or device


class PHMLinear(KroneckerWeight):
    """``y = Hx + b`` with ``H = Σᵢ kron(A[i], S[i])``: kd/n + n³ parameters (and k with bias) instead of kd.

    Attributes:
        A: (n, n, n), the rule: a parameter for ``phm``, else a buffer. Not there for n = 1.
        S: (n, k/n, d/n), the components. Not there for n = 1.
        weight: H, (k, d), computed at every use. For n = 1 the parameter itself.
        bias: (k,) or None.
        W, U, V: the rule's factors, (n, R), (n, R), (R, n), in place of A where the layer holds factors.
        execution: ``dense`` builds H and multiplies by it; ``rank`` multiplies by R blocks and never builds H. It may
            be set at any time, :func:`phmctl.tune` sets it to what is faster. ``rank`` wants the rule's factors.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        n: int,
        algebra: str = LEARNED,
        initialization: str = "default",
        splits: int = 1,
        execution: str | None = None,
        parametrization: str = RULE,
        rank: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer with parameters of its own.

        Args:
            in_features: d.
            out_features: k.
            bias: add a learned b.
            n: the PHM hyperparameter; 1 is ``nn.Linear``.
            algebra: ``phm`` for a learned rule, or ``real`` (n = 1), ``complex`` (2), ``quaternion`` (4),
                ``octonion`` (8), ``sedenion`` (16).
            initialization: one of :data:`~phmctl.algebra.initialisation.SCHEMES`. H and, for ``default``, the bias are
                distributed as in ``nn.Linear``; with every other scheme the bias begins at zero.
            splits: how many maps are stacked in this one (3 for fused Q, K, V): the fan-out is k/splits.
            execution: ``dense`` or ``rank``. By default ``rank`` where the layer holds factors, R/n² ≤ 0.4 and both
                dimensions are at least 512.
            parametrization: hold a learned rule as A (``rule``) or as W, U and V (``factors``).
            rank: R of the factors, which the rule is held as then; by default that of a random rule. A smaller one
                makes a more constrained rule.
            device: of the parameters.
            dtype: of the parameters.

        Raises:
            DimensionError: n does not divide k and d, or is not the algebra's own.
            RankError: execution ``rank`` for a layer without factors.
            UserError: no such algebra, initialization, execution or parametrization; or factors of a rule that is not
                learned.
        """
        check_divides(n, in_features=in_features, out_features=out_features)
        check_known("parametrization", parametrization, PARAMETRIZATIONS)
        if parametrization == FACTORS and rank is None:
            rank = natural_rank(n)
        super().__init__(out_features, in_features, n, algebra, rank, device=device, dtype=dtype)
        self.in_features = in_features
        self.out_features = out_features
        self.initialization = initialization
        self.splits = splits
        if execution == RANK:
            self._factors_by_rank()
        if execution is None:
            pays = self.holds_factors and len(self.V) <= 0.4 * n**2 and min(in_features, out_features) >= 512
            execution = RANK if pays else DENSE
        self.execution = execution
        values = torch.empty(out_features, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if values is None else nn.Parameter(values))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        self.initialise(self.initialization, self.in_features, self.out_features // self.splits)
        if self.bias is None or self.bias.is_meta:
            return
        if self.initialization == "default":
            bound = 1 / math.sqrt(self.in_features)
            self.bias.uniform_(-bound, bound)
        else:
            self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis. (..., d) -> (..., k).

        Raises:
            RankError: `execution` is ``rank`` and the rule has no factors.
        """
        if self.execution != RANK or self.n == 1:
            return F.linear(x, self.weight, self.bias)
        W, U, V = self._factors_by_rank()
        return rank_linear(x, block_sums(W, self.S), U, V, self.bias)

    def _factors_by_rank(self) -> Factors:
        factors = self.factors
        if factors is None:
            way = "n = 1 has none" if self.n == 1 else "pass parametrization='factors', or take layer.to_factors()"
            raise RankError(f"execution 'rank' needs the factors of the rule; {way}")
        return factors

    @torch.no_grad()
    def to_factors(self) -> "PHMLinear":
        """Return a layer of the same function, to rounding, that holds the rule as factors, for execution ``rank``.

        The rule is decomposed (:func:`~phmctl.algebra.bilinear.decompose`) at the generic rank, or at the next one that
        does; a fixed one can learn from then on.

        Raises:
            RankError: n = 1 has no rule.
        """
        if self.n == 1:
            raise RankError("a layer with n = 1 has no rule to decompose")
        factors = self.factors or decompose(self.A)
        layer = PHMLinear(
            self.in_features, self.out_features, self.bias is not None, n=self.n, rank=len(factors.V),
            initialization=self.initialization, splits=self.splits, device="meta", dtype=self.S.dtype,
        ).to_empty(device=self.S.device).train(self.training)  # fmt: skip
        state = dict(zip("WUVS", (*factors, self.S), strict=True))
        layer.load_state_dict(state if self.bias is None else state | {"bias": self.bias})
        layer.requires_grad_(self.S.requires_grad)
        if self.bias is not None and layer.bias is not None:
            layer.bias.requires_grad_(self.bias.requires_grad)
        return layer

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, n={self.n}, "
            f"bias={self.bias is not None}, algebra={self.algebra!r}"
        )


class TwoFactorLinear(nn.Module):
    """``y = L P R x + b``: R and L block-diagonal with N blocks each, P interleaves the blocks. One block: low rank.

    With one block it is W = BA through r numbers. With several it is ``monarch``: two block-diagonal matrices with a
    permutation between them (Dao et al. 2022, "Monarch: Expressive Structured Matrices for Efficient and Accurate
    Training", §3.1; for oblong maps as in its appendix). Parameters: m (d + k) / N, and k of the bias.

    Attributes:
        R: (N, m/N, d/N), applied first.
        L: (N, k/N, m/N).
        bias: (k,) or None.

    Args:
        in_features: d.
        out_features: k.
        blocks: N; it divides d, k and m.
        inner: m, the width between the factors.
        bias: add a learned b; it begins at zero.
        splits: how many maps are stacked in this one (3 for fused Q, K, V): the fan-out is k/splits.
        device: of the parameters.

    Raises:
        DimensionError: N does not divide a dimension.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        blocks: int,
        inner: int,
        bias: bool = True,
        splits: int = 1,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        check_divides(blocks, in_features=in_features, out_features=out_features, inner=inner)
        self.in_features, self.out_features, self.blocks, self.inner = in_features, out_features, blocks, inner
        self.R = nn.Parameter(torch.empty(blocks, inner // blocks, in_features // blocks, device=device))
        self.L = nn.Parameter(torch.empty(blocks, out_features // blocks, inner // blocks, device=device))
        self.register_parameter("bias", nn.Parameter(torch.zeros(out_features, device=device)) if bias else None)
        dense = dense_variance("xavier_uniform", in_features, out_features // splits)  # the outputs get its variance
        for factor, own in ((self.R, 1 / self.R.shape[2]), (self.L, dense * in_features / self.L.shape[2])):
            nn.init.uniform_(factor, -math.sqrt(3 * own), math.sqrt(3 * own))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis. (..., d) -> (..., k)."""
        if self.blocks == 1:
            return F.linear(F.linear(x, self.R[0]), self.L[0], self.bias)
        N, flat = self.blocks, x.reshape(-1, self.in_features)  # (T, d)
        h = flat.view(-1, N, self.R.shape[2]).transpose(0, 1) @ self.R.mT  # (N, T, m/N)
        h = h.permute(1, 2, 0).reshape(-1, N, self.L.shape[2])  # (T, N, m/N): number j of block i to place jN + i
        y = (h.transpose(0, 1) @ self.L.mT).transpose(0, 1).reshape(*x.shape[:-1], self.out_features)
        return y if self.bias is None else y + self.bias.to(y.dtype)  # autocast's, as of a dense map

    @property
    def weight(self) -> Tensor:
        """The matrix that it is, (k, d)."""
        dense: Tensor = self(torch.eye(self.in_features, device=self.R.device, dtype=self.R.dtype))  # (d, k)
        return (dense if self.bias is None else dense - self.bias).T
