"""The PHM layer: a drop-in for ``nn.Linear`` with about 1/n of its parameters (Zhang et al. 2021, §3.2)."""

import math
from typing import Any, Self

import torch
from torch import Tensor, nn

from phmctl.algebra.bilinear import KNOWN_RANKS, Factors
from phmctl.algebra.execution import (
    AUTO,
    DENSE,
    EXECUTIONS,
    FACTORED,
    RANK,
    Execution,
    apply_blocks,
    apply_dense,
    apply_factored,
    choose,
)
from phmctl.algebra.initialisation import natural_rank
from phmctl.algebra.operators import autocast_dtype, is_recorded
from phmctl.algebra.products import linear
from phmctl.algebra.rules import LEARNED
from phmctl.dimension import check_divides
from phmctl.errors import DimensionError, RankError, check_known
from phmctl.nn.kronecker_weight import KroneckerWeight

RULE, FACTORS = "rule", "factors"
PARAMETRIZATIONS = (RULE, FACTORS)

_APPLY: dict[str, Execution] = {DENSE: apply_dense, FACTORED: apply_factored}


class PHMLinear(KroneckerWeight):
    """``y = Hx + b`` with ``H = Σᵢ kron(A[i], S[i])``: kd/n + n³ parameters (and k with bias) instead of kd.

    Attributes:
        A: (n, n, n), the rule: a parameter for ``phm``, else a buffer. Not there for n = 1.
        S: (n, k/n, d/n), the components. Not there for n = 1.
        weight: H, (k, d). For n = 1 the parameter itself.
        bias: (k,) or None.
        W, U, V: the rule's factors, (n, R), (n, R), (R, n), in place of A where ``parametrization`` is ``factors``.
        execution: one of :data:`~phmctl.algebra.execution.EXECUTIONS`, and may be set at any time. ``rank`` wants the
            rule's factors: a layer that holds them or has a fixed algebra has them, any other after
            :meth:`decompose`, until its rule changes.
        keep_products: whether training by ``rank`` keeps what the gradient of U wants, or computes it again.
    """

    bias: nn.Parameter | None
    dense_type: type[nn.Module] | None = None  # what phmctl.convert found here, where that is not nn.Linear

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        n: int,
        algebra: str = LEARNED,
        rule: nn.Parameter | Factors | None = None,
        initialization: str = "default",
        splits: int = 1,
        execution: str = AUTO,
        parametrization: str = RULE,
        rank: int | None = None,
        keep_products: bool = True,
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
            rule: a learned rule (:func:`~phmctl.algebra.initialisation.learned_rule`), or the factors of one, to share
                with other layers.
            initialization: one of :data:`~phmctl.algebra.initialisation.SCHEMES`. H and, for ``default``, the bias are
                distributed as in ``nn.Linear``; with every other scheme the bias begins at zero.
            splits: how many maps are stacked in this one (3 for fused Q, K, V): the fan-out is k/splits.
            execution: ``auto``, ``dense``, ``factored`` or ``rank``; the same function, to rounding.
            parametrization: hold a learned rule as A (``rule``) or as W, U and V (``factors``).
            rank: R of the factors, by default that of a random rule; a smaller one makes a more constrained rule.
            keep_products: in training by ``rank``, keep what the gradient of U wants (R·k/n numbers a token), or
                compute it again.
            device: of the parameters.
            dtype: of the parameters.

        Raises:
            DimensionError: n does not divide k and d, or is not the algebra's own.
            UserError: no such algebra, initialization, execution or parametrization; or factors of a rule that is not
                learned.
        """
        check_divides(n, in_features=in_features, out_features=out_features)
        check_known("parametrization", parametrization, PARAMETRIZATIONS)
        if parametrization == FACTORS and rank is None and rule is None and n > 1:
            rank = natural_rank(n)
        super().__init__(out_features, in_features, n, algebra, rule, rank=rank, device=device, dtype=dtype)
        self.in_features = in_features
        self.out_features = out_features
        self.initialization = initialization
        self.splits = splits
        self.execution = execution
        self.keep_products = keep_products
        values = torch.empty(out_features, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if values is None else nn.Parameter(values))
        self.reset_parameters()

    @property
    def execution(self) -> str:
        """How the map is applied, one of :data:`~phmctl.algebra.execution.EXECUTIONS`; another name is refused."""
        return self._execution

    @execution.setter
    def execution(self, name: str) -> None:
        check_known("execution", name, EXECUTIONS)
        self._execution = name
        if name == RANK and self.algebra in KNOWN_RANKS:
            _ = self.factors  # found now: what is compiled cannot look for them

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the parameters anew. A rule that was passed in is left as it is."""
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
            DimensionError: the last axis is not d long.
        """
        if x.shape[-1] != self.in_features:
            raise DimensionError(f"input of shape {tuple(x.shape)} does not end in in_features = {self.in_features}")
        if self.n == 1:
            return linear(x, self.weight, self.bias)
        values = self._values()
        name = self._chosen(_rows_of(x), values)
        if name == DENSE:
            return linear(x, self.built("H"), self.bias)
        flat = x.reshape(-1, self.in_features)  # (T, d)
        if name == RANK:
            y = self._by_rank(flat)  # (T, k)
        else:
            y = _APPLY[name](flat, self.built("A") if self._holds_factors else self.A, self.S, self.bias)  # (T, k)
        return y.view(*x.shape[:-1], self.out_features)

    def execution_for(self, tokens: int) -> str:
        """Return the execution that a forward pass over so many tokens would take now."""
        return self._chosen(tokens, self._values())

    def _chosen(self, tokens: int, values: dict[Any, Any] | None) -> str:
        """Return the execution for so many tokens; inside a scope the choice is made once."""
        if self._execution in (DENSE, FACTORED):
            return self._execution
        if is_recorded():  # one graph for any number of tokens
            return RANK if self._execution == RANK and self._rank() is not None else DENSE
        if values is None:
            return self._choice(tokens, kept=False)
        use = tokens, self._execution, self._found is None
        choice = values.get(use)
        if choice is None:
            choice = values[use] = self._choice(tokens, kept=True)
        return choice

    def _choice(self, tokens: int, *, kept: bool) -> str:
        trains = self._wants_graph()
        rank = self._rank()
        if self._execution == RANK and (rank is not None or not trains):
            return RANK
        device = self.S.device.type
        dtype = (autocast_dtype(device) if device == "cpu" else None) or self.S.dtype
        shape = self.in_features, self.out_features, self.n
        return choose(tokens, *shape, rank, trains=trains, kept=kept, device=device, dtype=dtype)

    def _rank(self) -> int | None:
        """Return the rank that this layer could be applied with, None where its factors are not known.

        In training the factors must be parameters or constants: those that `decompose` found are neither.
        """
        if self._holds_factors:
            return len(self.V)
        if self.algebra in KNOWN_RANKS:
            return KNOWN_RANKS[self.algebra]
        factors = None if self._wants_graph() else self.factors
        return None if factors is None else factors.rank

    def _by_rank(self, flat: Tensor) -> Tensor:
        factors = self.factors
        if factors is None:
            raise RankError("execution 'rank' wants the factors of the rule; call decompose() after it has changed")
        return apply_blocks(flat, self.built("T"), factors, self.bias, keep=self.keep_products)

    @classmethod
    def from_dense(
        cls,
        linear: nn.Linear,
        n: int,
        *,
        algebra: str = LEARNED,
        parametrization: str = RULE,
        rank: int | None = None,
    ) -> tuple[Self, float]:
        """Return the PHM layer nearest to a dense one, with a copy of its bias.

        Args:
            linear: a dense layer, unchanged.
            n: the PHM hyperparameter; divides both its dimensions.
            algebra: ``phm``: the nearest A and S; a fixed one: the S that is nearest with its rule, by least squares.
            parametrization: hold the rule that was found as A (``rule``) or as W, U and V (``factors``).
            rank: R of the factors, by default one that gives the rule back exactly.

        Returns:
            the layer, on the same device and of the same dtype, and the relative error ‖W − H‖ / ‖W‖ (Frobenius)
            that it leaves: zero, but for rounding, when the weight is such a sum of n Kronecker products.

        Raises:
            DimensionError: n does not divide a dimension, or is not the algebra's own.
            RankError: the rule that was found wants a higher rank.
        """
        weight, bias = linear.weight.detach(), linear.bias is not None
        options: dict[str, Any] = {"algebra": algebra, "parametrization": parametrization, "rank": rank}
        made: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
        layer = cls(linear.in_features, linear.out_features, bias, n=n, **options, **made).train(linear.training)
        with torch.no_grad():
            if layer.bias is not None:
                layer.bias.copy_(linear.bias)
        return layer, layer.set_nearest(weight)

    @torch.no_grad()
    def to_dense(self) -> nn.Linear:
        """Return an ``nn.Linear`` with H as its weight: the same map, to rounding, with parameters of its own."""
        dense = nn.Linear(self.in_features, self.out_features, self.bias is not None, "meta", self.weight.dtype)
        dense = dense.to_empty(device=self.weight.device).train(self.training)  # no random numbers are drawn
        dense.weight.copy_(self.weight)
        if self.bias is not None:
            dense.bias.copy_(self.bias)
        return dense

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, n={self.n}, "
            f"bias={self.bias is not None}, algebra={self.algebra!r}"
        )


def _rows_of(x: Tensor) -> int:
    """Return how many rows x has; a number where the shape is one."""
    return math.prod(x.shape[:-1])
