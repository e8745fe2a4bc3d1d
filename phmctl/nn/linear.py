"""The PHM layer: a drop-in for ``nn.Linear`` with about 1/n of its parameters (Zhang et al. 2021, §3.2)."""

import math
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from phmctl.algebra.execution import EXECUTIONS, choose_execution
from phmctl.algebra.nearest import nearest_kronecker_sum
from phmctl.algebra.rules import LEARNED
from phmctl.dimension import check_divides
from phmctl.errors import DimensionError
from phmctl.nn.kronecker_weight import KroneckerWeight


class PHMLinear(KroneckerWeight):
    """``y = Hx + b`` with ``H = Σᵢ kron(A[i], S[i])``: kd/n + n³ parameters (and k with bias) instead of kd.

    Attributes:
        A: (n, n, n), the rule: a parameter for ``phm``, else a buffer. Not there for n = 1.
        S: (n, k/n, d/n), the components. Not there for n = 1.
        weight: H, (k, d). For n = 1 the parameter itself.
        bias: (k,) or None.
        execution: ``auto``, or the name of one of :data:`~phmctl.algebra.execution.EXECUTIONS` to hold to in training.
    """

    bias: nn.Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        n: int,
        bias: bool = True,
        *,
        algebra: str = LEARNED,
        rule: nn.Parameter | None = None,
        initialization: str = "default",
        splits: int = 1,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        """Make a layer with parameters of its own.

        Args:
            in_features: d.
            out_features: k.
            n: the PHM hyperparameter; 1 is ``nn.Linear``.
            bias: add a learned b.
            algebra: ``phm`` for a learned rule, or ``real`` (n = 1), ``complex`` (2), ``quaternion`` (4),
                ``octonion`` (8), ``sedenion`` (16).
            rule: a learned rule (:func:`~phmctl.algebra.rules.learned_rule`) to share with other layers.
            initialization: one of :data:`~phmctl.algebra.initialisation.SCHEMES`. H and, for ``default``, the bias are
                distributed as in ``nn.Linear``; with every other scheme the bias begins at zero.
            splits: how many maps are stacked in this one (3 for fused Q, K, V): the fan-out is k/splits.
            device: of the parameters.
            dtype: of the parameters.

        Raises:
            DimensionError: n does not divide k and d, or is not the algebra's own.
            UserError: no such algebra or initialization.
        """
        check_divides(n, in_features=in_features, out_features=out_features)
        super().__init__(out_features, in_features, n, algebra, rule, device=device, dtype=dtype)
        self.in_features = in_features
        self.out_features = out_features
        self.initialization = initialization
        self.splits = splits
        self.execution = "auto"
        values = torch.empty(out_features, device=device, dtype=dtype) if bias else None
        self.register_parameter("bias", None if values is None else nn.Parameter(values))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Draw the parameters anew. A rule that was passed in is left as it is."""
        self.initialise(self.initialization, self.in_features, self.out_features // self.splits)
        if self.bias is not None and self.initialization == "default":
            bound = 1 / math.sqrt(self.in_features)
            self.bias.uniform_(-bound, bound)
        elif self.bias is not None:
            self.bias.zero_()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the map to the last axis. (..., d) -> (..., k).

        Raises:
            DimensionError: the last axis is not d long.
        """
        if self.n == 1 or not self._builds():
            return F.linear(x, self.weight, self.bias)
        return self._execute(x)

    def _execute(self, x: Tensor) -> Tensor:
        if x.shape[-1] != self.in_features:
            raise DimensionError(f"input of shape {tuple(x.shape)} does not end in in_features = {self.in_features}")
        flat = x.reshape(-1, self.in_features)  # (T, d)
        name = choose_execution(len(flat), self.S) if self.execution == "auto" else self.execution
        y = EXECUTIONS[name](flat, self.A, self.S, self.bias)  # (T, k)
        return y.view(*x.shape[:-1], self.out_features)

    @classmethod
    def from_dense(cls, linear: nn.Linear, n: int) -> tuple[Self, float]:
        """Return the PHM layer nearest to a dense one, with a copy of its bias.

        Args:
            linear: a dense layer, unchanged.
            n: the PHM hyperparameter; divides both its dimensions.

        Returns:
            the layer, on the same device and of the same dtype, and the relative error ‖W − H‖ / ‖W‖ (Frobenius)
            that it leaves: zero, but for rounding, when the weight is a sum of n Kronecker products.

        Raises:
            DimensionError: n does not divide a dimension.
        """
        weight = linear.weight.detach()
        has_bias = linear.bias is not None
        layer = cls(linear.in_features, linear.out_features, n, has_bias, device=weight.device, dtype=weight.dtype)
        layer.train(linear.training)
        with torch.no_grad():
            if layer.bias is not None:
                layer.bias.copy_(linear.bias)
            if n == 1:
                layer.weight.copy_(weight)
                return layer, 0.0
            nearest = nearest_kronecker_sum(weight, n)
            layer.A.copy_(nearest.A)
            layer.S.copy_(nearest.S)
        return layer, nearest.relative_error

    def extra_repr(self) -> str:
        """Return the arguments, for ``repr``."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, n={self.n}, "
            f"bias={self.bias is not None}, algebra={self.algebra!r}"
        )
